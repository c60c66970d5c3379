"""Jobs that quantize language models, vision models and single parts with ModelOpt, and score the loss per layer."""
