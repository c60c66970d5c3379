"""MTP modules: layers after a model's own, in its own checkpoint, which were trained to guess later tokens."""
