"""MTP modules against modules of transformers' layers (`support/mtp.py`), wired as the authors' and vLLM's files do."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from tests.support.decoders import builds, model_of, relative_rms, rtx
from tests.support.generation import case_of
from tests.support.mtp import SIZES, Pair, new_pair, save
from trtkit.builder.speculators import open_speculator
from trtkit.drafts.mtp.network import build_network
from trtkit.dtypes import BF16, FP16, FP32, DType
from trtkit.errors import TrtkitError
from trtkit.models.speculators import open_kind
from trtkit.models.weights import find_weights, stored_spec
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.network.speculators import DRAFT_HIDDEN, NEXT_DRAFT_HIDDEN
from trtkit.reference import Executor, read_layers
from trtkit.sources.decoder_source import open_hf_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from trtkit.builder.speculators import OpenedSpeculator

T = 24
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "beta_fast": 2.0,
    "beta_slow": 0.1,
    "mscale": 0.7,
    "mscale_all_dim": 1.3,
    "original_max_position_embeddings": 16,
}
FULL, SLIDING = ["full_attention"], ["sliding_attention"]
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "glm4_moe": ("glm4_moe", {}),
    "glm4_moe-biases": ("glm4_moe", {"attention_bias": True, "use_qk_norm": False, "rms_norm_eps": 1e-3}),
    "glm4_moe-dense": ("glm4_moe", {"first_k_dense_replace": 5}),
    "glm4_moe-tied": ("glm4_moe", {"tie_word_embeddings": True, "routed_scaling_factor": 1.7, "n_group": 3}),
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v3-no_q_rank": ("deepseek_v3", {"q_lora_rank": None, "rope_interleave": False}),
    "deepseek_v3-yarn": ("deepseek_v3", {"rope_parameters": YARN, "norm_topk_prob": False}),
    "glm4_moe_lite": ("glm4_moe_lite", {}),
    "glm4_moe_lite-no_q_rank": ("glm4_moe_lite", {"q_lora_rank": None, "n_group": 3, "topk_group": 2}),
    "exaone_moe": ("exaone_moe", {}),
    "exaone_moe-sliding": ("exaone_moe", {"layer_types": [*SLIDING, *FULL, *SLIDING]}),
    "mellum": ("mellum", {}),
    "mellum-dense": (
        "mellum",
        {"layer_types": [*SLIDING, *FULL * 2], "mlp_layer_types": ["sparse", "dense", "dense"]},
    ),
    "mimo": ("mimo", {}),
    "mimo-sliding": ("mimo", {"layer_types": SLIDING * 3, "use_sliding_window": True, "sliding_window": 4}),
    "mimo-tied": ("mimo", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "mimo_v2_flash": ("mimo_v2_flash", {}),
    "mimo_v2_flash-biases": ("mimo_v2_flash", {"attention_bias": True, "attention_value_scale": 0.3}),
    "qwen3_5_text": ("qwen3_5_text", {}),
    "qwen3_5_moe_text-tied": ("qwen3_5_moe_text", {"tie_word_embeddings": True}),
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_next-tied": ("qwen3_next", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen3_next-dense": ("qwen3_next", {"mlp_only_layers": [0, 2]}),
}

WIRED = [
    "glm4_moe",
    "mimo",
    "qwen3_next",
    *(
        pytest.param(form, marks=pytest.mark.slow)
        for form in ("deepseek_v3", "exaone_moe", "glm4_moe_lite", "mellum", "mimo_v2_flash")
    ),
]


class Opened:
    """A pair's folder, read, and its module's network with caches for two slots."""

    def __init__(self, folder: Path, pair: Pair, *, expands_latent: bool = False, **how: Any) -> None:
        source = open_hf_folder(save(folder, pair, **how))
        self.target = stored_spec(source.config, source.where, source.checkpoint)
        self.read: OpenedSpeculator = open_speculator(folder, self.target)
        self.arrays = self.read.weights(find_weights(self.target, source.checkpoint, source.where))
        graph, options = Graph(rtx()), DecoderOptions(FP32, T, expands_latent=expands_latent)
        build_network(graph, self.read.spec, self.read.ids, self.arrays, options)
        self._run, self._graph = Executor(read_layers(rtx(), graph.network, graph.constants)), graph
        self._caches = [spec for spec in graph.inputs if spec.is_kept]
        self._past = {spec.name: torch.full(spec.shape_at({"batch": 2}), 100.0) for spec in self._caches}

    def step(self, start: int, ids: Tensor, hidden: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """Return logits [2, V] and hidden states [2, D] after the last token of each row. counts: of each row."""
        last = torch.tensor(counts) - 1
        feed = {
            "input_ids": ids.int(),
            DRAFT_HIDDEN: hidden,
            "position_ids": torch.arange(start, start + ids.shape[1]).expand(2, -1).int(),
            "write_indices": torch.full((2,), start).int(),
            "kv_lengths": (start + 1 + last).int(),
            "last_token_index": last.int(),
        }
        outputs = self._run.run({**feed, **self._past})
        self._past = {spec.name: outputs[spec.updated] for spec in self._caches}
        return outputs["logits"], outputs[NEXT_DRAFT_HIDDEN]


def opened_form(form: str, folder: Path, **how: Any) -> tuple[Pair, Opened]:
    model_type, changes = FORMS[form]
    torch.manual_seed(5)
    pair = new_pair(model_type, **changes)
    return pair, Opened(folder, pair, **how)


@pytest.mark.parametrize("form", FORMS)
@torch.inference_mode()
def test_guesses_and_chained_guesses_match_torch(form: str, tmp_path: Path) -> None:
    """In pieces with padding, then guess by guess from the module's own hidden states."""
    pair, opened = opened_form(form, tmp_path / "model")
    ids = torch.randint(3, 67, (2, 12))
    hidden, following = pair.hidden(ids)[:, :-1], ids[:, 1:]
    logits, states = pair.module(following, hidden)
    for start, stop in ((0, 5), (5, 6), (6, 11)):
        counts = [stop - start, max(1, stop - start - 2)]  # the second row has padding
        ours, ours_next = opened.step(start, following[:, start:stop], hidden[:, start:stop], counts)
        for row in range(2 if start == 0 else 1):
            last = start + counts[row] - 1
            assert relative_rms(ours[row], logits[row, last]) < 1e-5
            assert relative_rms(ours_next[row], states[row, last]) < 1e-5
    following, hidden = following[:1], hidden[:1]
    for position in (11, 12):
        guess = logits[:1, -1:].argmax(-1)
        following, hidden = torch.cat([following, guess], 1), torch.cat([hidden, states[:1, -1:]], 1)
        logits, states = pair.module(following, hidden)
        ours, ours_next = opened.step(position, guess.expand(2, 1), ours_next[:, None], [1, 1])
        assert relative_rms(ours[0], logits[0, -1]) < 1e-5
        assert relative_rms(ours_next[0], states[0, -1]) < 1e-5


@pytest.mark.parametrize("form", ["glm4_moe", "deepseek_v3", "mellum"])
@torch.inference_mode()
def test_guesses_match_transformers(form: str, tmp_path: Path) -> None:
    """`MtpModel`, which `generate(use_mtp=True)` guesses with, reads the folder itself."""
    _, opened = opened_form(form, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager")
    if form != "mellum":  # modules are known by the number of the layers of published sizes
        model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2\..*"]
    module = MtpModel.from_pretrained(model)
    ids = torch.randint(3, 67, (1, 12))
    hidden, following = model.model(ids).last_hidden_state[:, :-1], ids[:, 1:]
    places, cache = torch.arange(11)[None], MtpCache(config=model.config.get_mtp_config())
    states = module.forward_layer(0, hidden, places, cache, input_ids=following)
    ours, ours_next = opened.step(0, following.expand(2, -1), hidden.expand(2, -1, -1), [11, 11])
    assert relative_rms(ours[0], model.lm_head(states)[0, -1]) < 1e-5
    assert relative_rms(ours_next[0], states[0, -1]) < 1e-5


def swapped(pair: Pair) -> None:
    pair.module.swaps = not pair.module.swaps


def norms_exchanged(pair: Pair) -> None:
    module = pair.module
    module.embedding_norm, module.hidden_norm = module.hidden_norm, module.embedding_norm


def raw_chain(pair: Pair) -> None:
    pair.module.chains_raw = True


def raw_model(pair: Pair) -> None:
    normed = pair.hidden
    object.__setattr__(pair, "hidden", lambda ids: normed(ids, is_raw=True))


def other_last_norm(pair: Pair) -> None:
    pair.module.last_norm = pair.model.model.norm


@pytest.mark.parametrize("mistake", [swapped, norms_exchanged, raw_model, other_last_norm, raw_chain])
@pytest.mark.parametrize("form", WIRED)
@torch.inference_mode()
def test_a_module_that_is_wired_wrongly_gives_other_logits(
    form: str, mistake: Callable[[Pair], None], tmp_path: Path
) -> None:
    pair, opened = opened_form(form, tmp_path / "model")
    ids = torch.randint(3, 67, (2, 12))
    read, following = pair.hidden(ids)[:, :-1], ids[:, 1:]
    _, ours_next = opened.step(0, following, read, [11, 11])
    guess = torch.tensor([[7]])
    ours = opened.step(11, guess.expand(2, 1), ours_next[:, None], [1, 1])[0][0]
    right = _second(pair, following[:1], read[:1], guess)
    assert relative_rms(ours, right) < 1e-5
    mistake(pair)
    wrong = _second(pair, following[:1], pair.hidden(ids)[:1, :-1], guess)
    assert relative_rms(ours, wrong) > 1e-3


def _second(pair: Pair, following: Tensor, hidden: Tensor, guess: Tensor) -> Tensor:
    """Return the logits [V] of a module's second guess."""
    states = pair.module(following, hidden)[1]
    return pair.module(torch.cat([following, guess], 1), torch.cat([hidden, states[:, -1:]], 1))[0][0, -1]


@torch.inference_mode()
def test_tokens_are_those_after_the_hidden_states(tmp_path: Path) -> None:
    """A token earlier or later next to each hidden state gives other logits."""
    pair, opened = opened_form("glm4_moe", tmp_path / "model")
    ids = torch.randint(3, 67, (2, 12))
    hidden = pair.hidden(ids)
    right = pair.module(ids[:, 1:], hidden[:, :-1])[0][0, -1]
    assert relative_rms(opened.step(0, ids[:, 1:], hidden[:, :-1], [11, 11])[0][0], right) < 1e-5
    assert relative_rms(opened.step(0, ids[:, :-1], hidden[:, :-1], [11, 11])[0][0], right) > 1e-3
    assert relative_rms(opened.step(0, ids[:, 2:], hidden[:, :-2], [10, 10])[0][0], right) > 1e-3


@pytest.mark.parametrize(
    ("form", "dtype", "page_tokens"),
    [("glm4_moe", BF16, None), ("deepseek_v3", FP16, 4), ("glm4_moe_lite", FP16, None), ("qwen3_next", FP16, 4)],
)
def test_engine_of_a_module_builds(form: str, dtype: DType, page_tokens: int | None, tmp_path: Path) -> None:
    model_type, changes = FORMS[form]
    # Of 4 or 6 elements, TensorRT-RTX 1.7 cannot lay out a layer alone in 16 bits; published models have 64.
    wide = {"qk_rope_head_dim": 8} if "qk_rope_head_dim" in SIZES[model_type] else {}
    opened, graph = Opened(tmp_path / "model", new_pair(model_type, **changes, **wide)), Graph(rtx())
    options = DecoderOptions(dtype, T, page_tokens=page_tokens)
    build_network(graph, opened.read.spec, opened.read.ids, opened.arrays, options)
    assert builds(graph, has_decode=True)


@torch.inference_mode()
def test_expanded_latent_attention_matches_torch(tmp_path: Path) -> None:
    pair, opened = opened_form("deepseek_v3", tmp_path / "model", expands_latent=True)
    ids = torch.randint(3, 67, (2, 12))
    hidden = pair.hidden(ids)[:, :-1]
    right = pair.module(ids[:, 1:], hidden)[0][:, -1]
    assert relative_rms(opened.step(0, ids[:, 1:], hidden, [11, 11])[0], right) < 1e-5


@pytest.mark.parametrize("form", ["glm4_moe", "deepseek_v3"])
def test_stored_copies_of_embedding_and_head_are_read(form: str, tmp_path: Path) -> None:
    _, opened = opened_form(form, tmp_path / "model", repeats_shared=True)
    assert not opened.read.borrowed
    assert opened.read.arrays["embedding.weight"].shape == (67, 48)


def test_shared_weights_are_borrowed_from_the_model(tmp_path: Path) -> None:
    _, opened = opened_form("glm4_moe-tied", tmp_path / "model")
    assert opened.read.borrowed == {"embedding.weight": "embedding.weight", "lm_head.weight": "embedding.weight"}


def test_quantized_module_is_dequantized(tmp_path: Path) -> None:
    """In fp8 with a scale for each block, as DeepSeek-V3 is published."""
    torch.manual_seed(5)
    folder = save(tmp_path / "model", new_pair("glm4_moe"))
    weights, name = load_file(folder / "model.safetensors"), "model.layers.2.self_attn.o_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    scales = weights[f"{name}_scale_inv"] = torch.rand(3, 3) + 0.5
    save_file(weights, folder / "model.safetensors")
    quantization = {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
    rewrite("quantization_config", quantization)(folder)
    source = open_hf_folder(folder)
    read = open_speculator(folder, stored_spec(source.config, source.where, source.checkpoint))
    expected = weights[name].float() * scales.repeat_interleave(16, 0).repeat_interleave(16, 1)
    assert torch.equal(torch.from_numpy(read.arrays["layers.2.attention.o.weight"]), expected)


def test_module_beside_a_tower_is_read(tmp_path: Path) -> None:
    """Qwen3.5's published files hold a tower, the language model and the module."""
    _, alone = opened_form("qwen3_5_text", tmp_path / "model")
    folder = tmp_path / "model"
    fields, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    outer = {"model_type": "qwen3_5", "vision_config": {"hidden_size": 8}}
    text = {**fields, "mtp_num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps({**outer, "text_config": text}))
    renamed = {re.sub(r"^model\.", "model.language_model.", name): weight for name, weight in weights.items()}
    save_file({**renamed, "model.visual.merger.norm.weight": torch.ones(8)}, folder / "model.safetensors")
    source = open_hf_folder(folder)
    read = open_speculator(folder, stored_spec(source.config, source.where, source.checkpoint))
    assert read.spec == alone.read.spec
    assert all(np.array_equal(read.arrays[path], array) for path, array in alone.read.arrays.items())


def rewrite(name: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        fields = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**fields, name: value}))

    return change


def reweigh(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return apply


def without_module(weights: dict[str, Tensor]) -> None:
    for name in [name for name in weights if name.startswith("model.layers.2.")]:
        del weights[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewrite("num_nextn_predict_layers", 0), "`num_nextn_predict_layers` is 0: the model has no MTP module"),
        (rewrite("num_nextn_predict_layers", 2), "`num_nextn_predict_layers` is 2; only one MTP module is supported"),
        (reweigh(without_module), r"no weights begin with `model.layers.2.`: the checkpoint was saved without"),
        (reweigh(lambda w: w.pop("model.layers.2.enorm.weight")), r"`model.layers.2.enorm.weight` is missing"),
        (reweigh(lambda w: w.update({"model.layers.2.eh_proj.weight": torch.ones(48, 48)})), r"\[48, 48\]; expected"),
        (reweigh(lambda w: w.update({"model.layers.2.x.weight": torch.ones(2)})), "`model.layers.2.x.weight` is not"),
        (rewrite("vocab_size", 66), "`vocab_size` of the head is 66, the model's is 67"),
        (rewrite("hidden_size", 24), "`hidden_size` of the head is 24, the model's is 48"),
        (rewrite("num_hidden_layers", 1), "`num_hidden_layers` of the head is 1, the model's is 2"),
    ],
)
def test_module_that_does_not_fit_is_refused(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    folder = save(tmp_path / "model", new_pair("glm4_moe"))
    source = open_hf_folder(folder)
    target = stored_spec(source.config, source.where, source.checkpoint)
    change(folder)
    with pytest.raises(TrtkitError, match=message):
        open_speculator(folder, target)


def test_module_of_a_model_of_another_family_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", new_pair("glm4_moe"))
    message = "the modules are of a `glm4_moe`, the model is a `deepseek_v3`"
    with pytest.raises(TrtkitError, match=message):
        open_speculator(folder, model_of(case_of("deepseek_v3")).spec)


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("axk1", ": its weights `model.layers.3.*` or `model.layers.0.mlp.post_mlp_layernorm*` are not read"),
        ("llama", ""),
    ],
)
def test_modules_of_other_families_are_refused_by_their_names(model_type: str, names: str) -> None:
    what = f"MTP modules of a `{model_type}` are not supported, only those of "
    what += "deepseek_v3, exaone_moe, glm4_moe, glm4_moe_lite, mellum, mimo, mimo_v2_flash, "
    what += "qwen3_5_moe_text, qwen3_5_text, qwen3_next"
    assert list(open_kind("mtp").obstacles(model_of(case_of(model_type)).spec)) == [what + names]


@pytest.mark.parametrize(
    ("fields", "is_module"),
    [
        ({"model_type": "deepseek_v3"}, True),
        ({"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}, True),
        ({"model_type": "mimo", "num_nextn_predict_layers": 0}, True),
        ({"model_type": "unknown", "num_nextn_predict_layers": 1}, True),
        ({"model_type": "unknown", "num_nextn_predict_layers": 0}, False),
        ({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}, True),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, False),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, False),
        ({"model_type": "deepseek_v3", "speculators_model_type": "mtp"}, False),
    ],
)
def test_configs_of_models_with_modules_are_told(fields: dict[str, Any], is_module: bool) -> None:
    assert open_kind("mtp").describes(fields) == is_module
