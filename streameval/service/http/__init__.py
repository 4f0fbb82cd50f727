"""The HTTP server: metrics, health, the Report as JSON, and the status page."""
