"""Shared by tests: small models of every kind, servers, references, decoders in transformers and on the executor."""
