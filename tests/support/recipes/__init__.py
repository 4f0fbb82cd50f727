"""Show complete examples of new parts for CONTRIBUTING.md. `tests/documents/test_extending.py` uses them."""
