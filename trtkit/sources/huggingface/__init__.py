"""Folders of transformers, and the models that transformers itself loads from them."""
