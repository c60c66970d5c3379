"""Jobs that quantize models, by ModelOpt: language models, vision models, models part by part, and what layers lose."""
