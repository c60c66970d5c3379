"""Heads that guess a language model's tokens: read from their folders and written as networks."""
