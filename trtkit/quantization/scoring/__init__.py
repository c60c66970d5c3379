"""Loss from quantization, layer by layer, and the choice of methods within a budget."""
