"""Writes docs/features.md: which features work with which decoder family, and together. `python -m tests.features`.

Each cell is tried: a config with the features is resolved, opened and written as a network, for a small random model.
If that raises an error, the combination is refused, and the page quotes the error.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tests.support import tiny_vlm
from tests.support.decoder_cases import CASES
from tests.support.decoders import model_of, rtx
from tests.support.docs import DOCS
from tests.support.eagle3 import Head, fields_of, save_head
from tests.support.engine_decoders import config_of
from tests.support.medusa import save_random
from trtkit.builder.decoders import open_decoder
from trtkit.builder.vision_language import open_vision
from trtkit.config.schema import ModelConfig
from trtkit.errors import TrtkitError
from trtkit.models.feed_forward import MoeSpec
from trtkit.network.graph import Graph
from trtkit.quantization.llm.choice import cached_layers, choose
from trtkit.quantized_matrix import KvQuantization
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.decoder_case import Case
    from tests.support.tiny_vlm import Vlm
    from trtkit.models.spec import DecoderSpec

PAGE = DOCS / "features.md"
PAIRED = ("llama", "qwen3_moe", "deepseek_v3", "qwen3_next")
"""A dense family, a mixture of experts, a family with latent attention, and one with recurrent states."""
_HEAD = """\
# Features by family

Written by `python -m tests.features`: each cell is a small random model whose config asks for the feature; it is
resolved, opened and written as a network for TensorRT. A dot is a feature that works; a number is a refusal, in the
words of the error below. That what works is right is what the tests of each feature show, against transformers, PEFT or
one rank ([Language models](llm.md)); pairs of `llama`, `qwen3_next` and `gemma2` are also built and verified.

| column | feature | in a config |
| --- | --- | --- |
"""

_IMAGES = """
## With images

The same features of models that take images, whose towers are engines of their own ([Vision-language
models](vision-language.md)). With `vision.enabled: false`, their language models are those above. Those of `llava`,
`qwen3_vl` and `gemma3` are also built and verified.

"""


@dataclass(frozen=True)
class Feature:
    """A feature of language models. llm, parallel, quantize: its config keys. head: the kind of draft head."""

    title: str
    llm: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)
    quantize: dict[str, Any] = field(default_factory=dict)
    head: str = ""

    @property
    def setting(self) -> str:
        """The feature's config as text."""
        llm = {**self.llm, **({"speculator": "the head's folder"} if self.head else {})}
        parts = {"llm": llm, "parallel": self.parallel, "quantize": self.quantize}
        return "; ".join(f"`{part}: {_flow(keys)}`" for part, keys in parts.items() if keys)


def _flow(keys: dict[str, Any]) -> str:
    values = {key: _flow(value) if isinstance(value, dict) else str(value).lower() for key, value in keys.items()}
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"


FEATURES = {
    "pages": Feature("caches in pages", {"kv": "paged"}),
    "window": Feature("windows of linear caches", {"kv_window": "used"}),
    "packed": Feature("decoding and prompts in one call", {"batching": "packed"}),
    "logits": Feature("logits of all tokens", {"logits": "all"}),
    "LoRA": Feature("LoRA adapters", {"lora": {"max_rank_sum": 8}}),
    "embeds": Feature("embeddings as inputs", {"inputs": "embeds"}),
    "hidden": Feature("hidden states", {"hidden_states": True}),
    "neurons": Feature("active neurons", {"sparse_ffn": {"keep": 4}}),
    "int8": Feature("weights in 8 bits", quantize={"method": "int8_wo"}),
    "kv8": Feature("caches in 8 bits", quantize={"method": "none", "kv_cache": "int8"}),
    "EAGLE": Feature("EAGLE-3 head", head="eagle3"),
    "Medusa": Feature("Medusa head", head="medusa"),
    "tensor": Feature("tensor parallelism", parallel={"tensor": 2}),
    "sequence": Feature("sequence parallelism", parallel={"tensor": 2, "sequence": True}),
    "context": Feature("context parallelism", parallel={"tensor": 2, "context": 2}),
    "experts": Feature("expert parallelism", parallel={"expert": 2}),
    "pipeline": Feature("pipeline stages", parallel={"pipeline": 2}),
}


@dataclass(frozen=True)
class Subject:
    """A small model in a folder, with a draft head of each kind."""

    folder: Path
    config: ModelConfig
    spec: DecoderSpec

    @classmethod
    def of(cls, case: Case, folder: Path) -> Subject:
        """Return the subject of a decoder family."""
        return cls._with_heads(folder, config_of(case, folder), model_of(case).spec)

    @classmethod
    def with_images(cls, vlm: Vlm, folder: Path) -> Subject:
        """Return the subject of a vision-language family."""
        limits = {"max_sequence_length": tiny_vlm.LENGTH, "max_prefill_length": tiny_vlm.MAX_PREFILL}
        fields = {"source": {"hf": str(tiny_vlm.folder_of(vlm))}, "llm": {"max_batch_size": 3, **limits}}
        config = ModelConfig.model_validate({**fields, "vision": {"max_images": 3}})
        return cls._with_heads(folder, config, open_decoder(resolve(config)).spec)

    @classmethod
    def _with_heads(cls, folder: Path, config: ModelConfig, spec: DecoderSpec) -> Subject:
        sizes = spec.hidden_size, spec.vocab_size
        ids = list(range(len(spec.layers)))[-3:]
        heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "eagle_aux_hidden_state_layer_ids": ids}
        fields = fields_of(sizes[1], hidden_size=sizes[0], **heads)
        save_head(folder / "eagle3", Head(fields, layers=len(ids)))
        save_random(folder / "medusa", sizes, heads=4)
        (folder / "text.txt").write_text("Calibrate with these words. " * 20, encoding="utf-8")
        return cls(folder, config, spec)

    @property
    def _expert_ranks(self) -> int:
        """Return the smallest number of ranks, at least 2, that divides the experts."""
        mixtures = (layer.feed_forward for layer in self.spec.layers)
        count = max((mixture.num_experts for mixture in mixtures if isinstance(mixture, MoeSpec)), default=2)
        return next(ranks for ranks in range(2, count + 1) if count % ranks == 0)

    def refusal(self, features: Iterable[Feature]) -> str:
        """Return trtkit's error for the features together; empty if it supports them."""
        try:
            self._write(features)
        except TrtkitError as error:
            problems = getattr(error, "problems", None)
            return str(problems[0].what if problems else error.what)
        except ValidationError as error:
            return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        return ""

    def with_features(self, features: Iterable[Feature]) -> ModelConfig:
        """Return a config with the features. Raises ValidationError."""
        asked: dict[str, dict[str, Any]] = {"llm": {}, "parallel": {}, "quantize": {}}
        for feature in features:
            for part in asked:
                asked[part] |= getattr(feature, part)
            if feature.head:
                asked["llm"] |= {"speculator": str(self.folder / feature.head)}
        fields = self.config.model_dump(exclude_unset=True)
        fields["llm"] |= asked["llm"]
        fields["parallel"] = asked["parallel"] or None
        if "expert" in asked["parallel"]:
            fields["parallel"]["expert"] = self._expert_ranks
        text = {"calibration": {"data": str(self.folder / "text.txt"), "samples": 2, "length": 16}}
        fields["quantize"] = {**asked["quantize"], **text} if asked["quantize"] else None
        return ModelConfig.model_validate(fields)

    def _write(self, features: Iterable[Feature]) -> None:
        """Write the network. Raises TrtkitError, ValidationError."""
        config = self.with_features(features)
        model = resolve(config)
        if model.takes_images:
            open_vision(model.config)
        opened = open_decoder(model)
        if config.quantize is not None:
            choose(opened.spec, config.quantize)
            if config.quantize.kv_cache is not None:
                layers = cached_layers(opened.spec)
                scales = {index: dict.fromkeys(layer.caches, 1.0) for index, layer in layers.items()}
                caches = KvQuantization(config.quantize.kv_cache, scales)
                opened = replace(opened, source=replace(opened.source, kv_cache=caches))
        opened.write(Graph(rtx()), opened.weights())
        if opened.speculator is not None:
            opened.write_speculator(Graph(rtx()))


class Refusals:
    """A page's refusals, numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def cell(self, refusal: str) -> str:
        return "·" if not refusal else str(self._numbers.setdefault(refusal, len(self._numbers) + 1))

    def lines(self) -> str:
        return "".join(f"{number}. {refusal}\n" for refusal, number in self._numbers.items())


def first_cases() -> dict[str, Case]:
    """Return the first case of each family."""
    cases: dict[str, Case] = {}
    for case in CASES:
        cases.setdefault(case.model_type, case)
    return dict(sorted(cases.items()))


def table(head: str, names: Iterable[str], rows: Iterable[tuple[str, list[str]]]) -> str:
    columns = list(names)
    lines = [f"| {' | '.join((head, *columns))} |", f"| --- |{' :-: |' * len(columns)}"]
    lines += [f"| {' | '.join((name, *cells))} |" for name, cells in rows]
    return "\n".join(lines) + "\n"


def first_vlms() -> dict[str, Vlm]:
    """Return the first model of each vision-language family."""
    vlms: dict[str, Vlm] = {}
    for vlm in tiny_vlm.VLMS.values():
        vlms.setdefault(vlm.model_type, vlm)
    return dict(sorted(vlms.items()))


def _row(model_type: str, refusals: Refusals, subject_in: Callable[[Path], Subject]) -> tuple[str, list[str]]:
    with TemporaryDirectory() as folder:
        subject = subject_in(Path(folder))
        cells = [refusals.cell(subject.refusal([feature])) for feature in FEATURES.values()]
    model_of.cache_clear()
    print(model_type, *cells, file=sys.stderr)
    return f"`{model_type}`", cells


def _pairs(case: Case, refusals: Refusals) -> str:
    """Return the table of a family's pairs of features that work alone."""
    with TemporaryDirectory() as folder:
        subject = Subject.of(case, Path(folder))
        alone = {name: feature for name, feature in FEATURES.items() if not subject.refusal([feature])}
        cell: Callable[[str, str], str] = lambda one, other: (  # noqa: E731
            "" if one == other else refusals.cell(subject.refusal([alone[one], alone[other]]))
        )
        rows = [(name, [cell(name, other) for other in alone]) for name in alone]
    return table("", alone, rows)


def main() -> None:
    """Try all families and features, and write the page."""
    refusals, cases = Refusals(), first_cases()
    page = _HEAD + "".join(f"| {name} | {each.title} | {each.setting} |\n" for name, each in FEATURES.items()) + "\n"
    rows = [_row(name, refusals, partial(Subject.of, case)) for name, case in cases.items()]
    page += table("`model_type`", FEATURES, rows) + _IMAGES
    rows = [_row(name, refusals, partial(Subject.with_images, vlm)) for name, vlm in first_vlms().items()]
    page += table("`model_type`", FEATURES, rows)
    page += "\n## Two features at once\n"
    for name in PAIRED:
        page += f"\nOf `{name}`:\n\n" + _pairs(cases[name], refusals)
    page += "\n## Refusals\n\n" + refusals.lines()
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
