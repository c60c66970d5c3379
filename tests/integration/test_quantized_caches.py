"""KV caches in int8 and fp8: keys and values, latent vectors, shared caches, next to recurrent states."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import Cache

from tests.integration.test_packed_calls import CACHES, SLOTS, TOKENS, check_steps, decoder_of, ids_of, logits_of
from tests.selection import slow_unless
from tests.support import tiny_llm
from tests.support.covering import CACHED, in_covering_set_of, spec_of
from tests.support.decoder_cases import CASES
from tests.support.decoders import graph_of, model_of
from trtkit.builder.build import build_bundle
from trtkit.config.quantize import QuantizeOptions
from trtkit.config.schema import ModelConfig
from trtkit.dtypes import FP32
from trtkit.errors import ConfigError, NetworkError
from trtkit.jobs.runner import new_runner
from trtkit.llm.execution import Call
from trtkit.network.decoder_options import DecoderOptions
from trtkit.quantization.llm.calibration import measure
from trtkit.quantization.llm.choice import cached_layers, choose
from trtkit.quantized_matrix import KvQuantization
from trtkit.verification.jobs import VerifySettings
from trtkit.verification.verify import verify_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoder_case import Case
    from trtkit.config.quantize import CacheFormat

NAMED = {case.name: case for case in CASES}
CACHING = [case for case in CASES if spec_of(case).attentions]
# Their layers are not numbered as transformers numbers its caches.
RENUMBERED = ("nemotron-nas",)
_covers = in_covering_set_of(CACHING, CACHED)


def kv_of(case: Case, stored: CacheFormat, scale: float = 0.05) -> KvQuantization:
    layers = cached_layers(spec_of(case))
    return KvQuantization(stored, {index: dict.fromkeys(layer.caches, scale) for index, layer in layers.items()})


def rounded(x: torch.Tensor, stored: CacheFormat, scale: float) -> torch.Tensor:
    """Return what a cache holds of x."""
    y = x / scale
    codes = y.round().clamp(-128, 127) if stored == "int8" else y.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    return codes * scale


def rounded_logits(case: Case, kv: KvQuantization) -> torch.Tensor:
    """Return the logits of transformers' model, which rounds all that it caches before attention reads it."""
    update, numbers = Cache.update, sorted(kv.scales)
    seen: list[int] = []

    def rounding(self: Cache, first: torch.Tensor, second: torch.Tensor, layer: int, *rest: Any, **more: Any) -> Any:
        seen.append(layer)
        index = numbers[len(set(seen)) - 1] if case.name in RENUMBERED else layer
        scales = kv.scales[index]
        names = ("latent", "latent") if "latent" in scales else ("key", "value")
        first, second = (rounded(x, kv.format, scales[name]) for x, name in zip((first, second), names, strict=True))
        return update(self, first, second, layer, *rest, **more)

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(Cache, "update", rounding)
        logits: torch.Tensor = model_of(case).hf(torch.from_numpy(ids_of(0)), use_cache=True).logits
    assert len(set(seen)) == len(numbers)
    return logits


@pytest.mark.parametrize(
    ("case", "stored", "kind"),
    slow_unless(
        lambda case, stored, kind: _covers(case) and (stored, kind) in (("int8", "linear"), ("fp8", "paged")),
        itertools.product(CACHING, ("int8", "fp8"), ("linear", "paged")),
    ),
    ids=str,
)
def test_logits_are_those_of_transformers_with_rounded_caches(case: Case, stored: CacheFormat, kind: str) -> None:
    """A number at the edge of two codes may fall to either side, so the errors are compared with all that rounds."""
    kv = kv_of(case, stored)
    expected, none = rounded_logits(case, kv), np.zeros(SLOTS, np.int64)
    network = decoder_of(case, is_packed=False, kv_cache=kv, **CACHES[kind])
    logits = network.forward(Call(0, ids_of(0), none, np.full(SLOTS, TOKENS)))
    effect = (expected - logits_of(case)).abs().max()
    assert effect > 1e-3  # the caches do round
    assert (logits - expected).abs().max() < 0.02 * effect


# torch multiplies no experts of odd sizes on a CPU.
SMALL = {"deepseek_v3": {"first_k_dense_replace": 3}}
ODD = ("deepseek_v3", "kimi_linear", "qwen3_next", "falcon_h1", "gemma3n", "nemotron-nas")


@pytest.mark.parametrize(("name", "kind"), itertools.product(ODD, ("linear", "paged")))
def test_mixed_steps_give_what_calls_of_their_own_give(name: str, kind: str) -> None:
    case = NAMED[name]
    kv, none = kv_of(case, "int8"), np.zeros(SLOTS, np.int64)
    separate = decoder_of(case, is_packed=False, kv_cache=kv, **CACHES[kind])
    expected = separate.forward(Call(0, ids_of(0), none, np.full(SLOTS, TOKENS))).clone()
    check_steps(decoder_of(case, kv_cache=kv, **CACHES[kind]), expected)


@pytest.mark.parametrize("name", ["llama", *ODD])
def test_calibration_finds_the_largest_numbers_that_caches_hold(name: str) -> None:
    """It measures transformers' model; caches are trtkit's, which are to hold the same."""
    case = NAMED[name]
    cached, measured_ids = cached_layers(spec_of(case)), [ids.tolist() for ids in ids_of(0)]
    measured = measure(model_of(case).hf, [], cached, measured_ids, lambda _: None)
    decoder, none = decoder_of(case, is_packed=False), np.zeros(SLOTS, np.int64)
    decoder.forward(Call(0, ids_of(0), none, np.full(SLOTS, TOKENS)))
    arrays = decoder.cache.view(slice(0, SLOTS))
    for index, layer in cached.items():
        for cache in layer.caches:
            factor = spec_of(case).attentions[0].key_factor if cache == "key" else 1.0
            largest = factor * float(arrays[f"past_{cache}_{index}"].abs().max())
            assert measured.caches[index][cache] == pytest.approx(largest, rel=1e-4)


def test_a_scale_that_is_missing_is_named() -> None:
    case = NAMED["llama"]
    kv = KvQuantization("int8", {0: {"key": 1.0, "value": 1.0}, 1: {"key": 1.0}})
    with pytest.raises(NetworkError, match="layer 1's `value` cache has no scale in the checkpoint"):
        graph_of(model_of(case), DecoderOptions(FP32, 32, kv_cache=kv))
    more = kv_of(case, "int8")
    kv = KvQuantization("int8", {**more.scales, 9: {"key": 1.0, "value": 1.0}})
    with pytest.raises(NetworkError, match="layer 9's caches have scales, the model has 2 layers"):
        graph_of(model_of(case), DecoderOptions(FP32, 32, kv_cache=kv))


def test_a_model_without_caches_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"quantize\.kv_cache: the model has no KV cache"):
        choose(spec_of(NAMED["mamba2"]), QuantizeOptions(method="int8_wo", kv_cache="int8"))


@pytest.mark.parametrize(
    "name", slow_unless(lambda name: name == "deepseek_v3", ["deepseek_v3", "qwen3_next", "gemma3n", "falcon_h1"])
)
def test_bundle_with_caches_in_8_bits_verifies(name: str, tmp_path: Path) -> None:
    """From the model's folder: measured, exported, read, built, and compared with transformers in every corner."""
    case, words = NAMED[name], tiny_llm.tokenizer()
    model = model_of(replace(case, config={**case.config, **SMALL.get(name, {}), "vocab_size": len(words)}))
    model.hf.save_pretrained(tmp_path / "model")
    words.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("Calibrate with this text. " * 40, encoding="utf-8")
    config = ModelConfig.model_validate(
        {
            "source": {"hf": str(tmp_path / "model")},
            "precision": "fp32",
            "llm": {"max_batch_size": 3, "max_sequence_length": 64, "max_prefill_length": 16},
            "quantize": {
                "method": "none",
                "kv_cache": "int8",
                "calibration": {"data": str(tmp_path / "text.txt"), "samples": 4, "length": 32},
            },
        }
    )
    bundle = build_bundle(config, tmp_path / "bundle", new_runner(), use_cache=False).bundle
    caches = [spec.dtype for spec in bundle.manifest.stages[0].inputs if spec.name.startswith("past_")]
    assert "int8" in caches
    assert verify_bundle(bundle, VerifySettings(corners=True), new_runner()).passed
