"""What runs around a network: images in, answers out."""
