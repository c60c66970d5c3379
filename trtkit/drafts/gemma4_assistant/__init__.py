"""Gemma 4's assistant: a few layers without caches of their own, which read the model's."""
