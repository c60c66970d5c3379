"""Know that a network is right: outputs, layers and profile corners against references written by others."""
