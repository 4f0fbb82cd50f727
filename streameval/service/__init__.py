"""The daemon: its loop, start-up, metrics, snapshots, dead letters, HTTP server and status page."""
