"""Check the numerics of a network: outputs, layers and profile corners against references written by others."""
