"""Quantization of language models: from transformers' modules to ModelOpt checkpoints. Start reading at `job.py`."""
