"""Encoders of audio, as modules of torch that are exported."""
