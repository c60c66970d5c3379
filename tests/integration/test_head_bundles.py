"""Bundles of a model and its draft head, from config to answer; heads that do not fit are refused by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import tiny_llm
from tests.support.decoders import model_of
from tests.support.eagle3 import Head, fields_of, save_head
from tests.support.generation import case_of
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.builder.decoders import open_decoder
from trtkit.builder.speculators import tree_obstacles
from trtkit.config.schema import ModelConfig
from trtkit.errors import ConfigError, RequestError, TrtkitError
from trtkit.jobs.runner import new_runner
from trtkit.resolve import resolve
from trtkit.verification.jobs import VerifySettings as Checks
from trtkit.verification.verify import verify_bundle

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

VOCABULARY = len(tiny_llm.tokenizer())
PROMPTS = [*tiny_llm.PROMPTS, [7, 8, 9] * 9]
SAMPLED = [
    SamplingParams(temperature=t, seed=seed, max_tokens=14) for seed, t in enumerate((0.0, 0.8, 30.0, 0.0, 30.0))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of six layers, and a head for it without an embedding of its own."""
    folder = tmp_path_factory.mktemp("head")
    tiny_llm.save(folder / "model", num_hidden_layers=6)
    torch.manual_seed(2)
    fields = fields_of(VOCABULARY, hidden_size=48, draft_vocab_size=200, eagle_aux_hidden_state_layer_ids=[1, 3, 5])
    head = Head(
        fields | {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    )  # as some name and tie it
    del head.embed_tokens
    save_head(folder / "head", head, ids=list(range(40, 240)))
    return folder


def config_of(folder: Path, head: Path | None = None, **changes: Any) -> ModelConfig:
    sizes = {"max_batch_size": 3, "max_sequence_length": 64, "max_prefill_length": 16}
    llm = {**sizes, "speculator": str(head or folder / "head"), **changes.pop("llm", {})}
    return ModelConfig.model_validate(
        {"source": {"hf": str(folder / "model")}, "precision": "fp32", "llm": llm, **changes}
    )


@pytest.mark.parametrize(
    ("kv", "tree"),
    [
        ("paged", None),
        ("linear", 12),
        *(pytest.param(kv, tree, marks=pytest.mark.slow) for kv, tree in (("linear", None), ("paged", 12))),
    ],
)
def test_bundle_with_a_head_answers_as_without(kv: str, tree: int | None, folder: Path) -> None:
    config = config_of(folder, llm={"kv": kv, "tree_tokens": tree})
    bundle = build_bundle(config, folder / f"{kv}-{tree}", new_runner(), use_cache=False).bundle
    assert [stage.name for stage in bundle.manifest.stages] == ["speculator", "llm"]
    answers, guessed = {}, {}
    for speculate in (0, None, 5):
        with LLM(bundle, speculate=speculate) as llm:
            answers[speculate] = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, SAMPLED)]
            guessed[speculate] = llm.statistics.drafted_tokens
    assert answers[0] == answers[None] == answers[5]
    assert guessed[0] == 0 < guessed[None]
    assert tree is not None or guessed[None] < guessed[5]
    report = verify_bundle(bundle, Checks(corners=True), new_runner())
    assert report.passed
    errors = {corner.name: corner.relative_rms_error for corner in report.corners}
    assert errors["guesses of the head"] < 1e-5
    assert ("branches of a tree of guesses" in errors) == (tree is not None)
    assert errors.get("branches of a tree of guesses", 0.0) < 1e-5


def test_guesses_that_a_bundle_cannot_check_are_refused(folder: Path) -> None:
    bundle = build_bundle(config_of(folder, llm={"tree_tokens": 4}), folder / "small", new_runner()).bundle
    for options, what in (
        ({"speculate": 2, "lookup": 3}, "cannot be combined"),
        ({"speculate": -1}, "-1 tokens to guess"),
        ({"speculate": 5}, "5 tokens ahead exceed the 4 guesses of a step"),
    ):
        with pytest.raises(RequestError, match=what) as error:
            LLM(bundle, **options)
    assert error.value.fix == "give 4 or less, or build with a larger `llm.tree_tokens`"
    with LLM(bundle, lookup=3) as llm:  # what was asked for, not the head
        assert llm.frontend.execution.speculator is None


def test_guesses_without_a_head_are_refused(tmp_path: Path) -> None:
    bundle = tiny_llm.build(tmp_path, "plain")
    with pytest.raises(RequestError, match="no head that guesses tokens"):
        LLM(bundle, speculate=2)


def rewrite(name: str, value: Any) -> Callable[[Path], None]:
    def change(head: Path) -> None:
        fields = json.loads((head / "config.json").read_text())
        (head / "config.json").write_text(json.dumps({**fields, name: value}))

    return change


def reweigh(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(head: Path) -> None:
        weights = load_file(head / "model.safetensors")
        change(weights)
        save_file(weights, head / "model.safetensors")

    return apply


def pickled(head: Path) -> None:
    (head / "model.safetensors").rename(head / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewrite("vocab_size", 999), "`vocab_size` of the head is 999, the model's is 320"),
        (rewrite("target_hidden_size", 64), "`target_hidden_size`, or `hidden_size` of the head is 64"),
        (rewrite("num_hidden_layers", 2), "`num_hidden_layers` is `2`; only `1` is supported"),
        (rewrite("eagle_config", {"parallel_draft_step": 4}), "`parallel_draft_step` is `4`; only `1` is supported"),
        (rewrite("fc_norm", True), r"`fc_norm.2.weight` is missing, of shape \[48\]"),
        (rewrite("eagle_aux_hidden_state_layer_ids", [2, 3, 6]), r"layers \[2, 3, 6\] cannot be read from"),
        (rewrite("tree_width", 4), "`tree_width` is `4`"),
        (rewrite("architectures", ["Eagle"]), "not a head of a kind that is supported: the config names `Eagle`"),
        (rewrite("speculators_model_type", "mtp"), "the config names `mtp`"),
        (rewrite("model_type", "gemma2"), "a head whose layer is of the family `gemma2` is not supported"),
        (rewrite("model_type", "qwen3"), r"`self_attn.q_norm.weight` is missing, of shape \[8\]"),
        (rewrite("transformer_layer_config", {"hidden_size": 48}), "`transformer_layer_config.model_type` is missing"),
        (rewrite("transformer_layer_config", {"model_type": "llama"}), "`norm_before_residual` is missing"),
        (rewrite("draft_vocab_size", 400), "`draft_vocab_size` is 400, of 320 tokens"),
        (rewrite("quantization_config", {"quant_method": "gptq"}), "quantization_config"),
        (reweigh(lambda w: w.pop("d2t")), "`d2t` is missing"),
        (reweigh(lambda w: w["d2t"].fill_(0)), "`t2d` marks other tokens than `d2t` names"),
        (reweigh(lambda w: w["d2t"].fill_(500)), "`d2t` does not name 200 different tokens below 320"),
        (reweigh(lambda w: w.pop("fc.weight")), r"`fc.weight` is missing, of shape \[48, 144\]"),
        (reweigh(lambda w: w.update({"fc.weight": w["fc.weight"][:, :96].clone()})), r"shape \[48, 96\]; expected"),
        (reweigh(lambda w: w.update({"extra.weight": w["norm.weight"].clone()})), "`extra.weight` is not a weight of"),
        (pickled, r"the head is a pickle \(`pytorch_model.bin`\)"),
        (lambda head: (head / "config.json").unlink(), "the folder has no `config.json`"),
    ],
)  # fmt: skip
def test_head_that_does_not_fit_is_refused(
    change: Callable[[Path], None], message: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "head", tmp_path / "head")
    change(tmp_path / "head")
    with pytest.raises(TrtkitError, match=message):
        assert open_decoder(resolve(config_of(folder, tmp_path / "head"))).speculator


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": {"tensor": 2}}, "`parallel`"),
        ({"llm": {"inputs": "embeds"}}, "`llm.inputs: embeds`"),
        ({"build": {"weight_streaming": True}}, "`build.weight_streaming`"),
    ],
)
def test_config_that_a_head_does_not_work_with_is_refused(changes: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match="a head that guesses tokens does not work here") as error:
        assert open_decoder(resolve(config_of(folder, **changes))).speculator
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculator": None, "tree_tokens": 4}, "`tree_tokens` needs a head that guesses"),
        ({"tree_tokens": 16}, "tree_tokens 16 and the last token exceed max_prefill_length 16"),
        ({"tree_tokens": 1}, "greater than or equal to 2"),
        ({"tree_tokens": 65, "max_prefill_length": 128, "max_sequence_length": 128}, "less than or equal to 64"),
    ],
)
def test_tree_that_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(Path("any"), llm=options)


@pytest.mark.parametrize(
    ("family", "depth", "what"),
    [
        ("bloom", 4, "ALiBi"),
        ("llama4_text", 4, "attention in chunks"),
        ("qwen3_next", 4, "recurrent states"),
        ("mistral", 7, "7 guesses in a row exceed the sliding window of 7 tokens"),
        ("mistral", 6, None),
    ],
)
def test_models_whose_scores_depend_on_places_read_no_trees(family: str, depth: int, what: str | None) -> None:
    obstacles = list(tree_obstacles(model_of(case_of(family)).spec, depth, 64))
    assert obstacles == [] if what is None else what in obstacles[0]


def test_tree_is_refused_with_the_models_name_for_it(folder: Path, tmp_path: Path) -> None:
    tiny_llm.save(tmp_path / "model", num_hidden_layers=6)
    path = tmp_path / "model" / "config.json"
    fields = json.loads(path.read_text()) | {"model_type": "mistral", "architectures": None, "sliding_window": 8}
    path.write_text(json.dumps(fields))
    config = config_of(tmp_path, folder / "head", llm={"tree_tokens": 9})
    with pytest.raises(ConfigError, match="a head that guesses tokens does not work here") as error:
        assert open_decoder(resolve(config)).speculator
    assert "`llm.tree_tokens`: 9 guesses in a row exceed the sliding window of 8 tokens" in str(error.value)


def test_logits_of_the_last_token_are_refused() -> None:
    with pytest.raises(ValueError, match="`speculator` needs `logits: all`"):
        config_of(Path("any"), llm={"logits": "last"})


@pytest.mark.slow
def test_kernels_of_the_head_are_listed_apart_from_the_models(folder: Path, trtkit: Callable[..., Ran]) -> None:
    bundle = build_bundle(config_of(folder), folder / "fused", new_runner()).bundle
    errors, page = folder / "errors.json", folder / "page.html"
    errors.write_text(json.dumps({"layers": [{"layer": "embedding/gather", "relative_rms_error": 0.125}]}))
    ran = trtkit("inspect", bundle.path, "--fusion", "--json", "--html", page, "--measured", errors)
    titles = [(fusion["stage"], fusion["phase"]) for fusion in ran.json()["fusions"]]
    assert titles == [("speculator", "prefill"), ("speculator", "decode"), ("llm", "mixed"), ("llm", "decode")]
    graphs = [
        json.loads(text) for text in re.findall(r"<script type='application/json'>(.*?)</script>", page.read_text())
    ]
    marked = [sum(node["error"] is not None for node in graph["nodes"]) for graph in graphs]
    assert marked == [0, 0, 1, 1]
