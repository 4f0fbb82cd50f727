"""Inference that may be watched: confidence sequences, whose intervals hold at every time at once."""
