"""Estimate which GPUs fit a model, and how fast each can run it at best."""
