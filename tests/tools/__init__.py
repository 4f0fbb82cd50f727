"""Provide programs: `make fuzz`, `make soak`, and the pictures of deploy/."""
