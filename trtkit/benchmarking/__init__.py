"""Measure how fast a model is, compared with what else could serve it and what the hardware allows."""
