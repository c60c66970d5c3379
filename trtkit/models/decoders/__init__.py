"""One file per family of decoder-only language models."""
