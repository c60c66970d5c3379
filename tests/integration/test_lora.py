"""LoRA adapters as a network's inputs, any adapter in any row, against PEFT's model of each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.selection import slow_unless
from tests.support.adapters import peft_logits, save_adapter
from tests.support.covering import in_covering_set_of
from tests.support.decoder_cases import CASES
from tests.support.decoders import builds, model_of, relative_rms, rtx
from tests.support.engine_decoders import config_of
from tests.support.tiny_llm import save_to_quantize
from trtkit.builder.decoders import open_decoder
from trtkit.config.load import load_config
from trtkit.errors import ConfigError, ProblemsError
from trtkit.jobs.job import JobContext
from trtkit.llm.adapters import prepared_matrices
from trtkit.llm.execution import Call, ReferenceDecoder, decoder_network
from trtkit.llm.execution.packed import PackedCall
from trtkit.lora.adapter import model_modules, open_adapter
from trtkit.lora.targets import check_adapter
from trtkit.models.feed_forward import MoeSpec
from trtkit.network.graph import Graph
from trtkit.quantization.jobs import QuantizeRequest
from trtkit.quantization.llm.job import quantize_llm
from trtkit.resolve import resolve
from trtkit.sources.huggingface.model import causal_lm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoder_case import Case
    from trtkit.builder.decoders import OpenedDecoder

IDS = np.random.default_rng(5).integers(3, 67, (16, 9))
RANKS = (1, 2, 3, 4, 5, 7, 8, 12)
# PEFT adapts no Mamba layers of some of these, takes a gate of attention for an expert, and cannot save llama4's.
WITHOUT = ("afmoe", "llama4", "nemotron_h", "mamba2", "falcon_h1")
ADAPTED = [case for case in CASES if case.name not in WITHOUT]


def opened_of(case: Case, folder: Path, **options: Any) -> OpenedDecoder:
    llm = {"max_batch_size": 16, "logits": "all", "lora": {"max_rank_sum": sum(RANKS)}, "max_prefill_length": 32}
    return open_decoder(resolve(config_of(case, folder, **{**llm, **options})))


def targets_of(opened: OpenedDecoder) -> list[str]:
    """Return the names that transformers has for the modules that take adapters.

    Of mixtures only those of attention: PEFT adapts experts of the same names too, and loads some shared ones wrongly.
    """
    modules = {name: each for name, each in model_modules(opened.spec).items() if each.path in opened.adapted}
    is_mixture = any(isinstance(layer.feed_forward, MoeSpec) for layer in opened.spec.layers)
    return [name for name, each in modules.items() if not is_mixture or not re.search(r"\.(mlp|moe)\.", each.path)]


def loaded(decoder: ReferenceDecoder, opened: OpenedDecoder, folders: list[Path]) -> None:
    """Let the decoder hold adapters, numbered from 1, their ranks scattered."""
    assert decoder.adapters is not None
    rows = np.random.default_rng(0).permutation(decoder.adapters.most)
    for number, folder in enumerate(folders, 1):
        adapter = open_adapter(folder, opened.spec)
        check_adapter(adapter, opened.adapted, decoder.adapters.most)
        own, rows = rows[: adapter.adapter_rank], rows[adapter.adapter_rank :]
        decoder.adapters.write(own.tolist(), number, prepared_matrices(adapter, torch.float32))


def logits_of(decoder: ReferenceDecoder, ids: np.ndarray, adapters: np.ndarray) -> torch.Tensor:
    rows, size = ids.shape
    return decoder.forward(Call(0, ids, np.zeros(rows, np.int64), np.full(rows, size), adapters=adapters)).clone()


@pytest.mark.parametrize("batching", ["separate", "packed"])
def test_eight_adapters_in_one_batch_of_sixteen_are_peft_s(batching: str, tmp_path: Path) -> None:
    case = CASES[0]
    opened = opened_of(case, tmp_path, batching=batching)
    decoder = ReferenceDecoder(decoder_network(rtx(), opened), 16)
    hf, targets = model_of(case).hf, [("q_proj", "v_proj"), ("o_proj", "gate_proj", "up_proj", "down_proj")]
    folders = [
        save_adapter(
            tmp_path / str(rank), hf, rank, r=rank, target_modules=list(targets[rank % 2]), use_rslora=rank == 7
        )
        for rank in RANKS
    ]
    loaded(decoder, opened, folders)
    adapters = np.arange(16) % 9  # 0 is none
    got, ids = logits_of(decoder, IDS, adapters), torch.from_numpy(IDS)
    for row, number in enumerate(adapters):
        of_row = ids[row : row + 1]
        want = peft_logits(hf, folders[number - 1], of_row) if number else model_of(case).logits(of_row)
        assert relative_rms(got[row], want[0]) <= 1e-5
    if batching == "packed":
        assert relative_rms(mixed_logits(decoder, adapters), got[:, -1]) <= 1e-5


def mixed_logits(decoder: ReferenceDecoder, adapters: np.ndarray) -> torch.Tensor:
    """Return the logits of each row's last token; the first rows decode it as a guess, the others read all again."""
    rows, size = IDS.shape
    assert decoder.packed is not None
    first, rest = np.arange(5), np.arange(5, rows)
    decode = Call(0, IDS[:5, -2:], 0 * first + size - 2, 2 * first**0, adapters=adapters[:5])
    prompts = Call(5, IDS[5:], 0 * rest, 0 * rest + size, scattered=rest, adapters=adapters[5:])
    last = 10 + size * (1 + np.arange(len(rest))) - 1
    return decoder.packed.forward_packed(PackedCall(decode, prompts, np.append(2 * first + 1, last))).clone()


@pytest.mark.parametrize("case", slow_unless(in_covering_set_of(ADAPTED), ADAPTED), ids=str)
def test_rows_of_every_family_have_their_own_adapters(case: Case, tmp_path: Path) -> None:
    """Two adapters of all layers that take some, and a row without one; then a network that holds none at all."""
    opened = opened_of(case, tmp_path)
    decoder = ReferenceDecoder(decoder_network(rtx(), opened), 3)
    numbers, ids = np.array([2, 0, 1]), torch.from_numpy(IDS[:3])
    plain = model_of(case).logits(ids)
    assert relative_rms(logits_of(decoder, IDS[:3], np.zeros(3, np.int64)), plain) <= 1e-5
    hf, options = model_of(case).hf, {"target_modules": targets_of(opened)}
    folders = [save_adapter(tmp_path / str(seed), hf, seed, r=3 + seed, **options) for seed in (1, 2)]
    loaded(decoder, opened, folders)
    got = logits_of(decoder, IDS[:3], numbers)
    first, second = (peft_logits(hf, folder, ids) for folder in folders)
    for row, want in enumerate((second, plain, first)):
        assert relative_rms(got[row], want[row]) <= 1e-5
    assert relative_rms(second[0], plain[0]) > 0.05


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "phi3", ["llama", "phi3", "qwen3_5"]))
def test_engines_in_fp16_take_adapters(name: str, tmp_path: Path) -> None:
    """For prompts and for steps, from no ranks at all to the most."""
    case = next(case for case in CASES if case.name == name)
    options = {"lora": {"max_rank_sum": 24}, "batching": "separate"}
    opened = open_decoder(resolve(config_of(case, tmp_path, "fp16", **options)))
    assert builds(opened.write(Graph(rtx()), opened.weights()), has_decode=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["int8_wo", "int4_wo", "int4_awq"])
def test_quantized_weights_take_adapters_in_the_network_s_own_type(method: str, tmp_path: Path) -> None:
    path = save_to_quantize(tmp_path)
    lora = {"llm.lora.max_rank_sum": 24, "llm.max_batch_size": 4}
    config = load_config(str(path), [f"quantize.method={method}", *(f"{key}={value}" for key, value in lora.items())])
    quantize_llm(QuantizeRequest(config, tmp_path / "quantized"), JobContext())
    source = config.source.model_copy(update={"hf": str(tmp_path / "quantized")})
    opened = open_decoder(resolve(config.model_copy(update={"source": source, "quantize": None})))
    hf = causal_lm(opened.source)  # the dequantized weights
    folder = save_adapter(tmp_path / "adapter", hf, r=6, target_modules="all-linear")
    decoder = ReferenceDecoder(decoder_network(rtx(), opened), 3)
    loaded(decoder, opened, [folder])
    got = logits_of(decoder, IDS[:3], np.array([1, 1, 1]))
    assert relative_rms(got, peft_logits(hf, folder, torch.from_numpy(IDS[:3]))) <= 1e-5
    half = resolve(opened.config.model_copy(update={"precision": "fp16"}))
    opened = open_decoder(half)
    graph = opened.write(Graph(rtx()), opened.weights())
    assert graph.quantized
    assert builds(graph, has_decode=True)


def test_targets_limit_which_layers_take_adapters(tmp_path: Path) -> None:
    case = CASES[0]
    opened = opened_of(case, tmp_path, lora={"max_rank_sum": 4, "targets": ["q_proj", "layers.1.mlp.up_proj"]})
    assert opened.adapted == {"layers.0.attention.q", "layers.1.attention.q", "layers.1.mlp.up"}
    inputs = [spec.name for spec in opened.write(Graph(rtx()), opened.weights()).inputs if spec.feeder == "adapter"]
    assert len(inputs) == 1 + 2 * 3
    adapter = open_adapter(save_adapter(tmp_path / "a", model_of(case).hf, r=5, target_modules=["v_proj"]), opened.spec)
    with pytest.raises(ProblemsError) as caught:
        check_adapter(adapter, opened.adapted, 4)
    assert str(caught.value).replace(str(tmp_path), "") == (
        "the adapter does not fit the engine\n"
        "  /a: it changes `layers.0.attention.v`, which the engine takes no adapters for\n"
        "  /a: it changes `layers.1.attention.v`, which the engine takes no adapters for\n"
        "  /a: its rank, 5, is above `llm.lora.max_rank_sum`, 4\n"
        "fix: build with these targets in `llm.lora.targets`, and ranks up to `llm.lora.max_rank_sum`; or `source.lora`"
    )


def test_targets_that_the_model_has_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        opened_of(CASES[0], tmp_path, lora={"max_rank_sum": 4, "targets": ["q_projs", "gate_proj"]})
    assert str(caught.value) == (
        "the config does not fit a `llama`\n"
        "  llm.lora.targets: the model has no linear layer `q_projs`\n"
        "    fix: did you mean `q_proj`? use `down_proj`, `gate_proj`, `k_proj`, `o_proj`, "
        "`q_proj`, `up_proj`, `v_proj`"
    )
