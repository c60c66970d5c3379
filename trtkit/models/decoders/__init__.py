"""Decoder families, one file each, named after the config's `model_type`: `spec` turns a config into a spec."""
