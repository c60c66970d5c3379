"""The networks of heads that guess a language model's tokens: a module for each kind."""
