"""GGUF files: configuration, weights and tokenizers."""
