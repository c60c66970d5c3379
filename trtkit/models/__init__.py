"""Model families as data: what a decoder computes and what its weights are called."""
