"""Model families as data: a decoder's computation and the names of its weights."""
