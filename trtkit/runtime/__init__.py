"""Running networks: from pictures and texts to answers."""
