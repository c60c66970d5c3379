"""Serving simulated on a virtual clock: the real scheduler with modelled step times."""
