"""PyTorch modules whose public checkpoints ship without code: factories for `source.torch`."""
