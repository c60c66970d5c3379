"""Gemma 4's assistant: a few layers that read the model's caches and have none of their own."""
