"""EAGLE-3: one layer that guesses tokens from the hidden states of several of the model's layers."""
