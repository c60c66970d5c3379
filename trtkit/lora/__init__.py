"""Low-rank adapters (LoRA) in PEFT's files: read, checked against their model, and merged into its weights.

Source: LoRA, https://arxiv.org/abs/2106.09685; files as https://github.com/huggingface/peft writes them.
"""
