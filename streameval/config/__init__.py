"""Read `streameval.yaml` into checked models."""
