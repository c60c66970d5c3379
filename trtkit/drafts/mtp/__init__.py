"""MTP modules: layers after a model's own, in the same checkpoint, trained to guess later tokens."""
