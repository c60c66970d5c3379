"""Serving on a virtual clock: the engine's own queue, slots and plans of chunks, with modelled step times."""
