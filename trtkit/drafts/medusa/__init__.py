"""Medusa heads: each guesses the token at its own distance from the model's last hidden state."""
