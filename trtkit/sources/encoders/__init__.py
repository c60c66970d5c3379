"""Encoders of encoder-decoder models, as torch modules for export."""
