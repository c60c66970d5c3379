"""A model whose weights do not fit the device: its stages in turn, a block of many sequences at a time."""
