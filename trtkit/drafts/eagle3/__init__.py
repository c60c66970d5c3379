"""EAGLE-3: one layer that guesses tokens from hidden states of some of the model's layers."""
