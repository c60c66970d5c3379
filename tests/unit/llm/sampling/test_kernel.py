"""The kernel in Triton's interpreter draws the tokens of the sampler on the CPU, and compiles for each GPU."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from tests.selection import slow_unless
from tests.support.instructions import instructions_of_loops
from tests.unit.llm.sampling.rows import Rows
from trtkit.dtypes import BF16, FP16, FP32, DType
from trtkit.llm.sampling.columns import Columns
from trtkit.llm.sampling.draw import GROUP, draw
from trtkit.llm.sampling.kernel import CHUNK, Tables, kernels, numbers_of, sample
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.sampled import FAILED, NOTHING
from trtkit.llm.sampling.settings import Settings
from trtkit.network.aot import COMPUTE_CAPABILITIES, compile_kernel

VOCABULARY = 128_256
FILTERS: list[dict[str, Any]] = [
    {"temperature": 0},
    {},
    {"temperature": 0.6},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 1500, "temperature": 1.7},
    {"top_p": 0.9},
    {"top_p": 0.2},
    {"min_p": 0.1},
    {"typical_p": 0.9},
    {"typical_p": 0.2},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.05, "typical_p": 0.9},
    {"top_p": 0.95, "min_p": 0.02},
]


def distributions(rows: int, vocab_size: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.manual_seed(seed)
    noise = torch.randn(rows, vocab_size, generator=generator)
    return {
        "random": noise * 3,
        "peaked": noise * 9,
        "flat": noise / 5,
        "equal": noise * 0,
        "two values": (noise > 0).float(),
        "ties": (noise * 2).round() / 2,
    }


def drawn_by_kernel(params: list[SamplingParams], rows: Rows, logits: torch.Tensor, **extras: Any) -> Any:
    columns = Columns(len(params))
    for slot, one in enumerate(params):
        columns.admit(slot, Settings.resolve(one, rows.vocabulary))
    uniform = rows.sampler._uniform.at(rows.slots, rows.sequences.lengths)
    numbers = torch.from_numpy(numbers_of(columns, rows.slots, uniform)).to(logits.device)
    return sample(logits, numbers, Tables(**extras)).tolist()


@pytest.mark.parametrize(  # less than a block, and blocks with a rest; sorted, and not
    ("name", "vocab_size"),
    slow_unless(
        lambda name, vocab_size: vocab_size == 11 or name in {"random", "equal", "ties"},
        itertools.product(distributions(1, 1, 0), (11, 2500)),
    ),
)
def test_tokens_are_those_of_the_sampler(name: str, vocab_size: int) -> None:
    params = [SamplingParams(seed=row, **setting) for row, setting in enumerate(FILTERS * 2)]
    logits = distributions(len(params), vocab_size, 5)[name]
    rows = Rows(vocab_size, params)
    tokens = drawn_by_kernel(params, rows, logits)
    assert tokens == rows.sampler.sample(logits, rows.slots).tokens.tolist()


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "ties", distributions(1, 1, 0)))
def test_rows_of_several_chunks_are_drawn_as_one(name: str) -> None:
    """Two chunks and a rest: filters leave nothing of the second."""
    vocab_size = 2 * CHUNK + 700
    params = [SamplingParams(seed=row, **setting) for row, setting in enumerate(FILTERS)]
    logits = distributions(len(params), vocab_size, 5)[name]
    logits[:, 2 * CHUNK :] += 2
    logits[:, CHUNK : 2 * CHUNK] -= 50
    rows = Rows(vocab_size, params)
    tokens = drawn_by_kernel(params, rows, logits)
    assert tokens == rows.sampler.sample(logits, rows.slots).tokens.tolist()
    assert len({token // CHUNK for token in tokens}) == 2 or name not in {"random", "flat", "equal"}


def test_penalties_bias_and_bans_are_those_of_the_sampler() -> None:
    vocab_size = 1100
    rng = np.random.default_rng(0)
    settings: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.7, "frequency_penalty": 0.4},
        {"repetition_penalty": 0.8, "frequency_penalty": -0.5, "top_k": 30},
        {"temperature": 0, "repetition_penalty": 1.5},
    ]
    params = [
        SamplingParams(seed=row, logit_bias={3: 4.0, 7: -2.0}, bad_words=((5,), (6,), (1099,)), **settings[row % 4])
        for row in range(12)
    ]
    histories = [(rng.integers(0, 20, 9).tolist(), rng.integers(0, 20, row).tolist()) for row in range(12)]
    rows = Rows(vocab_size, params, histories)
    logits = torch.zeros(12, vocab_size)
    logits[:, :20] = torch.randn(12, 20, generator=torch.manual_seed(1)) * 2 + 6  # what is penalised is drawn
    logits[:, [5, 1099]] = 30.0
    bias, counts = torch.zeros_like(logits), torch.zeros_like(logits, dtype=torch.int32)
    bias[:, 3], bias[:, 7] = 4.0, -2.0
    for row, (prompt, generated) in enumerate(histories):
        counts[row, prompt] = 1
        for token in generated:
            counts[row, token] += 2
    allowed = torch.full((12, 35), -1, dtype=torch.int32)
    allowed[:, 0] &= ~((1 << 5) | (1 << 6))
    allowed[:, 1099 // 32] &= ~(1 << 1099 % 32)
    before = counts.clone()
    tokens = drawn_by_kernel(params, rows, logits, bias=bias, counts=counts, allowed=allowed)
    assert tokens == rows.sampler.sample(logits, rows.slots).tokens.tolist()
    before[torch.arange(12), tokens] += 2
    assert torch.equal(counts, before)


def test_a_row_without_a_token_is_bad_and_the_others_are_not() -> None:
    params = [SamplingParams(seed=1, top_p=0.9, typical_p=0.8)] * 5
    logits = torch.randn(5, 1300, generator=torch.manual_seed(0))
    logits[1, 1200], logits[2, 3], logits[3], logits[4, :1299] = torch.nan, torch.inf, -torch.inf, -torch.inf
    rows = Rows(1300, params)
    tokens = drawn_by_kernel(params, rows, logits)
    assert tokens[1:4] == [FAILED, FAILED, NOTHING]
    assert [max(token, FAILED) for token in tokens] == rows.sampler.sample(logits, rows.slots).tokens.tolist()


@pytest.mark.parametrize("uniform", [0.0, 5e-324, 0.5, 1 - 2**-53, 1.0])
def test_barred_tokens_are_never_drawn_at_the_edges(uniform: float) -> None:
    logits = torch.full((3, 1500), -torch.inf)
    logits[0, [2, 1100]], logits[1, 1499], logits[2, 0] = 0.0, -80.0, 3.0
    numbers = torch.tensor([[1, 1, 0, 0, 0, 0, 0, 1, uniform]], dtype=torch.float64).repeat(3, 1)
    tokens = sample(logits, numbers)
    assert tokens[0] in (2, 1100)
    assert tokens[0] == draw(logits, np.full(3, uniform))[0] or uniform == 1.0  # which takes the first of the largest
    assert tokens[1:].tolist() == [1499, 0]


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=str)
@pytest.mark.parametrize("capability", COMPUTE_CAPABILITIES)
def test_the_kernels_compile(capability: int, dtype: DType) -> None:
    for kernel in kernels().to_compile(dtype, VOCABULARY).values():
        compiled = compile_kernel(kernel, capability)
        assert compiled.target == f"sm_{capability}"  # PTX that later GPUs take too
        assert compiled.spill_bytes == 0
        assert compiled.cubin[:4] == b"\x7fELF"


BUDGET = {"process": 170, "choose_candidates": 130, "race": 80}
"""Instructions that a token of the vocabulary may cost, in the kernels that read all of them."""


def test_a_token_costs_few_instructions() -> None:
    """Each of those kernels has a loop over a chunk, 512 threads; a search has a list of candidates, or of spans."""
    for name, kernel in kernels().to_compile(FP32, VOCABULARY).items():
        if name in BUDGET:
            tokens = {"race": GROUP}.get(name, kernels().BLOCK) / (32 * kernel.num_warps)
            loops = instructions_of_loops(compile_kernel(kernel, 90).cubin)
            assert max(loops) / tokens <= BUDGET[name], name


@pytest.mark.parametrize("vocab_size", [1024, 1001])
def test_no_slot_needs_kernels_of_its_own(vocab_size: int) -> None:
    """Triton compiles a variant for pointers that 16 divides, and for those that it does not."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime.jit import create_function_from_signature

    backend = CUDABackend(GPUTarget("cuda", 90, 32))
    dtypes = {"*fp32": torch.float32, "*fp64": torch.float64, "*i32": torch.int32, "*i64": torch.int64}
    for kernel in kernels().to_compile(FP32, vocab_size).values():
        specialize = create_function_from_signature(kernel.function.signature, kernel.function.params, backend)
        types = {name: kind for name, kind in kernel.signature.items() if kind[0] == "*"}
        variants = set()
        for first_slot in range(8):
            tensors = {name: torch.zeros(64, dtype=dtypes[kind])[first_slot:] for name, kind in types.items()}
            _, specialization, _ = specialize(
                **tensors, V=vocab_size, **kernel.constants, num_warps=kernel.num_warps, debug=False
            )
            variants.add(str(specialization))
        assert len(variants) == 1
