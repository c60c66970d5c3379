"""What changes scores before the filters, in transformers' order (`GenerationMixin._get_logits_processor`, 5.23)."""
