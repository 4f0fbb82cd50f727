"""Define the dashboards of streameval as code. `make dashboards` writes them to deploy/grafana/dashboards/ as JSON."""
