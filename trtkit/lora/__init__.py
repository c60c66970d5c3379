"""LoRA adapters in PEFT's format: read them, check them against their model, merge them into its weights.

Source: LoRA, https://arxiv.org/abs/2106.09685; files as https://github.com/huggingface/peft writes them.
"""
