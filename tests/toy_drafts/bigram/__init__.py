"""The smallest kind of draft head: a table that says which token follows which. It reads no hidden state."""
