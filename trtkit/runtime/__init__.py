"""Running networks: pictures and texts in, answers out."""
