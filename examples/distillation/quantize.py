"""Quantize a language model to int4 in blocks of 32, and train it with the quantizers in place."""

from __future__ import annotations

import copy

import modelopt.torch.quantization as mtq
import torch
from distill import distill, open_model, parser
from modelopt.torch.export import export_hf_checkpoint

INT4 = {
    "quant_cfg": [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*layers.*weight_quantizer", "cfg": {"num_bits": 4, "block_sizes": {-1: 32}}},
    ],
    "algorithm": "max",
}


def main() -> None:
    """Write a quantized and trained checkpoint."""
    options = parser(__doc__).parse_args()
    teacher, tokenizer = open_model(options.model)
    student = mtq.quantize(copy.deepcopy(teacher), INT4)
    distill(student, teacher, tokenizer.encode(options.text.read_text(encoding="utf-8")), options)
    # In 16 bits, weights would be rounded before they are quantized, which would change some codes.
    export_hf_checkpoint(student, dtype=torch.float32, export_dir=options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
