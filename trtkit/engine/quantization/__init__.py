"""Jobs that quantize models, by ModelOpt."""
