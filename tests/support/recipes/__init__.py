"""Complete examples of new parts, to which CONTRIBUTING.md refers; `tests/documents/test_extending.py` uses them."""
