"""Arrays, the base of configurable values, and text formatting: nothing of the domain."""
