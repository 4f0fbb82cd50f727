"""`streameval.yaml` as pydantic models: loading it, and its problems in words."""
