"""Heads that guess a language model's tokens, as data: a module for each kind, which never imports another's."""
