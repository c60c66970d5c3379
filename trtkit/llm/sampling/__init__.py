"""From logits to tokens: settings, processors, filters, draws, guides."""
