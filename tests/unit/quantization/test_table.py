"""A method is a row: one added here is known to config, help, docs, budgets, plans, targets and algorithms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trtkit.dtypes import DTYPES
from trtkit.quantization.int4 import ROUNDERS
from trtkit.quantization_methods import FORMATS, METHODS, methods_for, weight_bits

ROOT = Path(__file__).parents[3]
# Rows have to be there before the config is imported, as those of the table are: hence a process of its own.
ADDED = """
import dataclasses, json, runpy
from trtkit import quantization_methods as table

table.METHODS["int4_toy"] = table.Method("int4", "block", "toy", ("llm", "vision", "written"), tolerance=0.25)

import torch
from click.testing import CliRunner
from transformers import LlamaConfig, LlamaForCausalLM
from tests.unit.planning.planned import TINY_LLAMA
from trtkit.cli.quantize import command
from trtkit.config.quantize import PartOptions, QuantizeOptions
from trtkit.models.registry import decoder_spec
from trtkit.planning.quantized_by import by_options
from trtkit.quantization import int4
from trtkit.quantization.llm.choice import choose
from trtkit.quantization.llm.sequential import quantize_int4
from trtkit.quantization.scoring.mix import Bits
from trtkit.quantization.by_part import check_options
from trtkit.quantization.written import rounded

int4.ROUNDERS["toy"] = lambda weights, moments, rounding: [int4.nearest(0 * weight, rounding) for weight in weights]

fields = {**TINY_LLAMA, "hidden_size": 96, "intermediate_size": 160}  # which blocks of 32 divide
options, spec = QuantizeOptions(method="int4_toy"), decoder_spec(fields)
check_options(options)
choice, model = choose(spec, options), LlamaForCausalLM(LlamaConfig(**fields))
matrices = quantize_int4(model, choice, int4.Rounding(choice.block), [[1, 2, 3]], lambda done, count: None)
pages = runpy.run_path("docs/generate.py")
PAGES = ("quantization", "quantization_vision", "quantization_hybrids")
print(json.dumps({
    "help": CliRunner().invoke(command, ["--help"]).output.count("int4_toy"),
    "docs": sum(pages[name]().count("`int4_toy`") for name in PAGES),
    "types": sorted(options.types()),
    "bits": Bits(choice.block)("int4_toy"),
    "planned": dataclasses.asdict(by_options(spec, options).layers["layers.0.mlp.down"]),
    "tolerance": table.tolerance_of("int4_toy"),
    "written": rounded(torch.ones(4, 64).numpy(), "int4_toy", PartOptions()).format,
    "largest": max(float(abs(matrix.weights()).max()) for matrix in matrices.values()),
    "all": len(matrices) == len(choice.methods),
}))
"""


def test_a_row_is_all_that_a_method_takes() -> None:
    done = subprocess.run([sys.executable, "-c", ADDED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "help": 2,  # of language models, of vision models
        "docs": 4,  # a row for each of them, and the parts of both ways into a hybrid
        "types": ["int4"],
        "bits": 4 + 16 / 32,
        "planned": {
            "format": "int4",
            "block": 32,
            "inputs": None,
            "is_per_token": False,
            "has_offsets": False,
            "is_packed": False,
        },
        "tolerance": 0.25,
        "written": "int4",
        "largest": 0.0,
        "all": True,
    }


@pytest.mark.parametrize("name", METHODS)
def test_rows_agree_with_their_formats(name: str) -> None:
    method = METHODS[name]
    assert method.takes_block == (method.format == "int4")
    assert (method.block(64) == 64) == method.takes_block
    assert method.algorithm in ROUNDERS or not method.takes_block
    assert method.tolerance > 0 or not {"vision", "written"} & {*method.uses}


def test_every_kind_of_model_has_methods_that_need_no_data() -> None:
    for use in ("llm", "experts", "vision", "written"):
        assert any(not METHODS[name].needs_data for name in methods_for(use)), use


def test_bits_count_scales_and_offsets_of_blocks() -> None:
    bits = [weight_bits("int8"), weight_bits("int4", 64), weight_bits("int4", 32, has_offsets=True)]
    assert bits == [8, 4.25, 5]
    assert [weight_bits("mxfp8"), weight_bits("fp4")] == [8.25, 4.5]
    assert all(row.type_name in DTYPES for row in FORMATS.values())
