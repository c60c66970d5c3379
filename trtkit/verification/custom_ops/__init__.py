"""Every implementation of a custom op against its reference."""
