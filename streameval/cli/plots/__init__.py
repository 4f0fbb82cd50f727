"""Plots of the verb `replay`."""
