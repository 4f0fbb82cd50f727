"""The core of the evaluator: loops over events and blocks, in modules that the build compiles."""

__all__ = ["COMPILE_HINT", "NOT_COMPILED"]

UNCOMPILED_SLOWDOWN = 600
"""How many times as long the kernels take if they are not compiled; measured with `products`."""
NOT_COMPILED = f"the kernels are not compiled: they take about {UNCOMPILED_SLOWDOWN} times as long"
COMPILE_HINT = "install a C compiler and the headers of Python (Debian: gcc, python3-dev), and install streameval again"
