"""Planning: which GPUs fit a model, and each one's best-case speed."""
