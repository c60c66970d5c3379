"""`llm.sparse_ffn` from config to answers: calibrated, built, run and verified; refused combinations."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM

from tests.support import tiny_llm
from trtkit import LLM
from trtkit.builder.active_neurons import sparse_ffn_problems
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.config.schema import ModelConfig
from trtkit.jobs.runner import new_runner
from trtkit.models.registry import decoder_spec
from trtkit.network.decoder import BLOCK_COUNTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

FFN = 301  # 4 does not divide it


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny OPT, of whose neurons a sixth is active, a text, and bundles that keep all active blocks, and few."""
    path = tmp_path_factory.mktemp("sparse")
    torch.manual_seed(0)
    words = tiny_llm.tokenizer()
    sizes = {"hidden_size": 48, "word_embed_proj_dim": 48, "ffn_dim": FFN, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 6, "vocab_size": len(words), "max_position_embeddings": 256}
    model = OPTForCausalLM(OPTConfig(**sizes, eos_token_id=tiny_llm.END, bos_token_id=1, pad_token_id=0))
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[-1] ** -0.5)
        if name.endswith("fc1.bias"):
            torch.nn.init.constant_(weight, -1.5)
    model.save_pretrained(path / "model")
    words.save_pretrained(path / "model")
    (path / "text.txt").write_text(tiny_llm.TEXT * 8, encoding="utf-8")
    (path / "m.yaml").write_text(
        "source: {hf: model}\nprecision: fp32\n"
        "llm: {max_batch_size: 2, max_sequence_length: 96, max_prefill_length: 48,"
        " sparse_ffn: {calibration: {data: text.txt, length: 64}, block: 4}}\n"
    )
    few = ["llm.sparse_ffn={keep: [9, 11], block: 4}"]
    for name, changes in (("exact", []), ("few", few), ("dense", ["llm.sparse_ffn=null"])):
        build_bundle(load_config(str(path / "m.yaml"), changes), path / name, new_runner())
    return path


def active_blocks(folder: Path, ids: list[int]) -> list[torch.Tensor]:
    """Return, of each layer, how many blocks of four each token activates, as torch counts them."""
    model, counts = AutoModelForCausalLM.from_pretrained(folder / "model").eval(), []
    for layer in model.model.decoder.layers:
        layer.fc2.register_forward_pre_hook(
            lambda _, inputs: counts.append(
                torch.nn.functional.pad(inputs[0].reshape(-1, FFN) != 0, (0, 3)).view(-1, 76, 4).any(-1).sum(-1)
            )
        )
    with torch.inference_mode():
        model(torch.tensor([ids]))
    return counts


def test_layers_keep_the_most_blocks_that_a_token_of_the_text_activates(folder: Path) -> None:
    """As torch counts them, window by window; the bundle's config says so, and it is not measured again."""
    ids = tiny_llm.tokenizer()((folder / "text.txt").read_text())["input_ids"]
    windows = [ids[at : at + 64] for at in range(0, len(ids) - 63, 64)][:32]
    counts = [active_blocks(folder, window) for window in windows]
    most = [max(int(layers[index].max()) for layers in counts) for index in range(2)]
    options = json.loads((folder / "exact" / "manifest.json").read_text())["config"]["llm"]["sparse_ffn"]
    assert options["keep"] == most
    assert options["calibration"]["data"] is None
    assert all(0 < kept < 76 for kept in most)


@pytest.mark.parametrize("resident", [None, 1, 4])
def test_answers_are_the_dense_bundles_whether_rows_are_mapped_or_kept(folder: Path, resident: int | None) -> None:
    with LLM(folder / "dense") as dense:
        want = [output.outputs[0].token_ids for output in dense.generate(tiny_llm.PROMPTS[:2], tiny_llm.GREEDY)]
        assert dense.statistics.read_blocks == dense.statistics.row_bytes == 0
    with LLM(folder / "exact", slots=1, resident_tokens=resident) as llm:
        outputs = llm.generate(tiny_llm.PROMPTS[:2], tiny_llm.GREEDY)
        done = llm.statistics
    assert [output.outputs[0].token_ids for output in outputs] == want
    assert done.missed_blocks == 0
    assert 0 < done.active_blocks < done.read_blocks
    gathered = done.read_blocks * 4 * 48 * 4  # a row of `down` by neuron: no block is read twice in a step
    most = {None: 1.0, 1: 0.8, 4: 0.5}[resident]
    assert done.row_bytes == gathered if resident is None else 0 < done.row_bytes < most * gathered


def test_missed_blocks_are_those_that_torch_counts(folder: Path, trtkit: Callable[..., Ran]) -> None:
    """Of one slot: a token's missed blocks are its active ones beyond those kept; the first layer's do not depend on
    what was missed before.
    """
    with LLM(folder / "few", slots=1) as llm:
        output = llm.generate([tiny_llm.PROMPTS[0]], tiny_llm.GREEDY)[0]
        done = llm.statistics
    ids = [*tiny_llm.tokenizer()(tiny_llm.PROMPTS[0])["input_ids"], *output.outputs[0].token_ids]
    stepped = len(output.outputs[0].token_ids) - 1  # the prompt was dense, and the last token was not read
    first = active_blocks(folder, ids)[0][-1 - stepped : -1]
    assert done.missed_blocks >= int((first - 9).clamp(min=0).sum()) > 0
    ran = trtkit("generate", folder / "few", tiny_llm.PROMPTS[0], "--max-tokens", 6)
    assert re.search(r"\d+ of \d+ active blocks of neurons were left out, so answers are not exact", ran.err)


def test_verify_passes_what_is_exact_and_fails_what_is_not(folder: Path, trtkit: Callable[..., Ran]) -> None:
    kept = json.loads((folder / "exact" / "manifest.json").read_text())["config"]["llm"]["sparse_ffn"]["keep"]
    sets = ["--set", f"llm.sparse_ffn={{keep: {[count + 8 for count in kept]}, block: 4}}"]
    exact = trtkit("verify", folder / "m.yaml", *sets, "--json")
    assert exact.code == 0
    assert json.loads(exact.out)["neurons"]["missed"] == 0
    few = trtkit("verify", folder / "m.yaml", "--set", "llm.sparse_ffn={keep: [9, 11], block: 4}")
    assert few.code != 0
    assert "missed ones make answers inexact" in " ".join(few.out.split())


def test_perplexity_is_that_of_steps_of_one_token(folder: Path, trtkit: Callable[..., Ran]) -> None:
    """Whole windows would read all neurons: the loss of what is missed shows in steps only."""
    read = {}
    for name in ("dense", "exact", "few"):
        ran = trtkit("eval", folder / name, "--perplexity", folder / "text.txt", "--windows", 1, "--json")
        read[name] = json.loads(ran.out)
    assert read["exact"]["perplexity"] == pytest.approx(read["dense"]["perplexity"], rel=1e-4)
    assert abs(read["few"]["perplexity"] / read["dense"]["perplexity"] - 1) > 0.01
    assert read["few"]["neurons"]["missed"] > 100 * read["exact"]["neurons"]["missed"]
    assert "neurons" not in read["dense"]


OPT = {"model_type": "opt", "hidden_size": 48, "word_embed_proj_dim": 48, "ffn_dim": 300, "num_hidden_layers": 2,
       "num_attention_heads": 6, "vocab_size": 67, "max_position_embeddings": 64}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 67,
         "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "hidden_act": "relu", "num_local_experts": 4, "num_experts_per_tok": 2}
SPARSE = {"keep": 5}


@pytest.mark.parametrize(
    ("fields", "config", "text"),
    [
        (LLAMA, {}, "layer 0 has the activation `silu`, which leaves no neuron at zero, as `relu` and `relu2` do"),
        ({**LLAMA, "model_type": "bitnet"}, {}, "layer 0 has a norm over all neurons"),
        ({**LLAMA, "model_type": "phi3", "hidden_act": "relu"}, {}, "gate and up in one matrix"),
        (MIXTRAL, {}, "layer 0 is a mixture of experts"),
        (OPT, {"parallel": {"tensor": 2}}, "ranks do not count active neurons together yet"),
        (OPT, {"parallel": {"pipeline": 2}}, "ranks do not count active neurons together yet"),
        (OPT, {"quantize": {"method": "int8_wo"}}, "rows of quantized or pruned matrices are not gathered"),
        (OPT, {"build": {"sparse_weights": True}}, "gathered rows have no kernels for 2:4 weights"),
        (OPT, {"llm": {"speculator": "built-in"}}, "draft heads are not supported yet"),
        (OPT, {"llm": {"sparse_ffn": {"keep": [1, 2, 3]}}}, "3 numbers for 2 layers with a feed-forward part"),
        ({**OPT, "ffn_dim": 9000}, {"llm": {"sparse_ffn": {"keep": 4000}}}, "4000 is above 3840, the most blocks"),
        (OPT, {"llm": {"sparse_ffn": {"calibration": {"data": "t"}}}}, "what layers keep has not been measured"),
    ],
)
def test_what_it_does_not_work_with_is_refused_by_name(
    fields: dict[str, Any], config: dict[str, Any], text: str
) -> None:
    llm = {"sparse_ffn": SPARSE, **config.get("llm", {})}
    checked = ModelConfig.model_validate({"source": {"hf": "m"}, **config, "llm": llm})
    problems = list(sparse_ffn_problems(decoder_spec(fields), checked, frozenset()))
    assert any(text in problem.what and problem.fix for problem in problems)


def test_adapters_of_feed_forward_parts_are_refused(folder: Path, refuses: Callable[..., str]) -> None:
    lora = ["--set", "llm.lora={max_rank_sum: 8}", "--set", "llm.sparse_ffn={keep: 9}"]
    error = refuses("build", folder / "m.yaml", *lora, code=2)
    assert "adapters cannot change `layers.0.mlp.down`, whose rows are gathered" in error


def test_a_runtime_option_of_other_bundles_is_refused(folder: Path, refuses: Callable[..., str]) -> None:
    error = refuses("generate", folder / "dense", "x", "--resident-tokens", 3, code=2)
    assert "the bundle's steps read all neurons" in error


def test_one_of_keep_and_calibration_is_needed(folder: Path, refuses: Callable[..., str]) -> None:
    error = refuses("build", folder / "m.yaml", "--set", "llm.sparse_ffn.keep=4", code=2)
    assert "`sparse_ffn` needs either `keep` or `calibration.data`; got both" in error


def test_layers_that_keep_all_blocks_are_dense(folder: Path, tmp_path: Path) -> None:
    config = load_config(str(folder / "m.yaml"), ["llm.sparse_ffn={keep: [76, 500], block: 4}"])
    built = build_bundle(config, tmp_path / "b", new_runner())
    outputs = [output.name for output in built.bundle.manifest.stages[-1].networks[0].outputs]
    assert "logits" in outputs
    assert BLOCK_COUNTS not in outputs
