"""Encoders of encoder-decoder models, as modules of torch that are exported."""
