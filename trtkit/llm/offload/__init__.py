"""Models whose weights do not fit the device: stages run in turn, on a block of many sequences at a time."""
