"""What quantization loses, layer by layer, and which mix of methods holds a budget."""
