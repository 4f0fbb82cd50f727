"""Pictures of a replay and of `plan`."""
