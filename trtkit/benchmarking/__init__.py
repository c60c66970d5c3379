"""Measure how fast a model is, beside what else could serve it and what the hardware allows."""
