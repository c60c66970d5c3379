"""`trtkit plan` on configs, bundles and bare files; refusals; the commands of its page."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import ViTConfig, ViTForImageClassification

import trtkit as trtkit_api
from tests.support import hybrids, models, tiny_llm, tiny_vlm
from tests.support.docs import DOCS, blocks, run_script
from tests.support.eagle3 import Head, fields_of, save_head
from tests.support.pages import Page, rows, svg
from trtkit.planning.source import find_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran


@pytest.fixture
def tiny(workspace: Path) -> Path:
    """A Llama of which there is a config.json and nothing else."""
    folder = tiny_llm.save(workspace / "tiny")
    for file in folder.iterdir():
        if file.name != "config.json":
            file.unlink()
    return folder


def test_adapters_take_memory_and_are_read_once_a_step(tiny: Path, trtkit: Callable[..., Ran]) -> None:
    words = ("plan", tiny, "--gpu", "h200", "--input-len", 20, "--output-len", 12, "--concurrency", 3, "--json")
    words += ("--set", "llm.max_batch_size=3")
    plain = trtkit(*words).json()
    with_adapters = trtkit(*words, "--set", "llm.lora.max_rank_sum=24").json()
    sizes = [(48, 48), (48, 16), (48, 16), (48, 48), (48, 80), (48, 80), (80, 48)]
    matrices = 4 * 2 * 24 * sum(map(sum, sizes))
    assert with_adapters["gpus"][0]["memory"]["adapters_bytes"] == matrices + 4 * 24
    assert plain["gpus"][0]["memory"]["adapters_bytes"] == 0
    moved = [plan["step"]["decode"]["fused_bytes"] for plan in (plain, with_adapters)]
    assert matrices <= moved[1] - moved[0] <= 1.05 * matrices
    grids = trtkit(*words, "--set", "llm.lora.max_rank_sum=24", "--set", "parallel.tensor=2").json()["gpus"][0]["grids"]
    halves = [grid["memory_per_gpu"]["adapters_bytes"] for grid in grids if grid["tensor"] == 2]
    assert matrices / 2 < halves[0] < matrices


def test_a_plan_says_what_ranks_save_that_share_tokens(tiny: Path, trtkit: Callable[..., Ran]) -> None:
    words = ("plan", tiny, "--gpu", "h200", "--set", "parallel.tensor=2", "--set", "parallel.sequence=true")
    text = " ".join(trtkit(*words, "--details", "--set", "llm.max_prefill_length=100").out.split())
    assert "h200: `parallel.sequence` on 2 GPUs, in a step of 100 new tokens, per GPU" in text
    assert "hidden states kept 18.8 KiB 9.4 KiB" in text  # of 48 numbers of fp32
    assert "2 x 1 *" in text
    refused = trtkit(*words, "--set", "llm.batching=separate")
    assert refused.code == 2
    assert "parallel.sequence: ranks cannot share the tokens of a call with `llm.batching: separate` yet" in refused.err


def test_a_plan_says_what_ranks_save_that_share_cached_positions(tiny: Path, trtkit: Callable[..., Ran]) -> None:
    """Of 2 key/value heads of 8 numbers in 2 layers; two ranks divide them anyway, and positions save nothing more."""
    words = ("plan", tiny, "--gpu", "h200", "--input-len", 20, "--output-len", 12, "--concurrency", 3)
    settings = ("--set", "parallel.tensor=2", "--set", "parallel.context=2")
    text = " ".join(trtkit(*words, *settings, "--details").out.split())
    assert "h200: `parallel.context` on 2 GPUs, a decode step at 32 tokens, per GPU" in text
    assert "KV cache 12.0 KiB 12.0 KiB" in text
    assert "a step is faster at no length that the model takes" in text
    assert "*: with `parallel.context`" in text
    refused = trtkit(*words, *settings, "--set", "llm.kv_window=used")
    assert refused.code == 2
    assert "ranks cannot share cached positions (`parallel.context`) with `kv_window: used` yet" in refused.err


def test_a_head_takes_memory(tiny: Path, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    head = Head(fields_of(320, hidden_size=48, draft_vocab_size=200, eagle_aux_hidden_state_layer_ids=[0, 1]), layers=2)
    save_head(workspace / "head", head, ids=list(range(200)))
    words = ("plan", tiny, "--gpu", "h200", "--input-len", 20, "--output-len", 12, "--concurrency", 3)
    with_head = (*words, "--set", f"llm.speculator={workspace / 'head'}")
    plain, plan = (trtkit(*each, "--json").json()["gpus"][0]["memory"] for each in (words, with_head))
    weights, cached = sum(weight.numel() for weight in head.parameters()), 3 * 32 * 2 * 2 * 8
    assert plan["speculator_bytes"] == 4 * (weights + cached)
    logits = plan["activations_bytes"] - plain["activations_bytes"]  # of all tokens, which guesses are checked by
    assert plan["total_bytes"] - plain["total_bytes"] == 4 * (weights + cached) + logits
    assert "speculator" in trtkit(*with_head).out


def test_llm_is_planned_for_without_its_weights(tiny: Path, trtkit: Callable[..., Ran]) -> None:
    words = ("plan", tiny, "--gpu", "l4,h200", "--input-len", 20, "--output-len", 12, "--concurrency", 3, "--json")
    plan = trtkit(*words).json()
    model = plan["model"]
    assert plan["version"] == 1
    assert model["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4  # two layers of two heads of 8, in fp32
    assert plan["workload"]["length"] == 32
    assert plan["step"]["decode"]["cache_bytes"] == 3 * 32 * model["kv_bytes_per_token"]
    assert [gpu["gpu"] for gpu in plan["gpus"]] == ["l4", "h200"]
    assert all(gpu["fits"] and gpu["backends"] and gpu["sources"] for gpu in plan["gpus"])
    assert plan["gpus"][0]["largest_context"] == model["max_length"] == 256
    assert plan["gpus"][0]["largest_context_is_the_models"]


def test_steps_of_one_kind_are_counted_alike_if_decoding_and_prompts_share_calls(
    tiny: Path, trtkit: Callable[..., Ran]
) -> None:
    separate, packed = (
        trtkit("plan", tiny, "--set", f"llm.batching={batching}", "--gpu", "h100", "--json").json()
        for batching in ("separate", "packed")
    )
    for part in ("model", "step", "layers", "formulas", "kv_window"):
        assert packed[part] == separate[part]
    assert [packed["gpus"][0][time] for time in ("ttft", "tpot")] == [
        separate["gpus"][0][time] for time in ("ttft", "tpot")
    ]


def test_a_plan_has_the_time_of_a_step_that_also_reads_a_prompt(tiny: Path, trtkit: Callable[..., Ran]) -> None:
    words = ("plan", tiny, "--gpu", "h100", "--input-len", 100, "--output-len", 12, "--concurrency", 3)
    (gpu,) = trtkit(*words, "--json").json()["gpus"]
    assert [step["prompt_tokens"] for step in gpu["mixed_steps"]] == [64, 100]
    whole = gpu["mixed_steps"][-1]
    assert whole["packed"].keys() == {"ms", "bound", "compute_ms", "memory_ms"}
    assert whole["separate_ms"] == pytest.approx(gpu["ttft"]["ms"] + gpu["tpot"]["ms"])
    assert whole["packed"]["ms"] < whole["separate_ms"]
    table = (
        trtkit(*words, "--details").out.split("h100: steps that also read a prompt")[1].split("h100: other formats")[0]
    )
    assert [line.split()[0] for line in table.splitlines() if line.strip()] == ["prompt", "64", "100"]


def test_llm_plan_says_what_attention_is_given_to_read(tiny: Path, trtkit: Callable[..., Ran]) -> None:
    slot = ("--set", "llm.max_sequence_length=256", "--set", "llm.max_prefill_length=64")
    words = ("plan", tiny, "--gpu", "l4", "--input-len", 60, "--output-len", 12, "--concurrency", 3, *slot)
    plan = trtkit(*words, "--json").json()
    per_token = plan["model"]["kv_bytes_per_token"]
    reads = {"full": (256, 1), "used": (128, 3)}  # a window is copied first: read, written and read
    assert plan["kv_window"] == {
        name: {"tokens": tokens, "bytes": 3 * times * tokens * per_token} for name, (tokens, times) in reads.items()
    }
    assert plan["step"]["decode"]["cache_bytes"] == 3 * 256 * per_token
    full, used = (plan["gpus"][0]["tpot_by_kv_window"][window]["memory_ms"] for window in ("full", "used"))
    assert plan["gpus"][0]["tpot"]["memory_ms"] == full < used  # more than a third of the slots is in use
    line = (
        "192.0 KiB of caches in a decode step (slots of 256 tokens), 288.0 KiB with `llm.kv_window: used`, copied "
        "first (128)"
    )
    assert line in " ".join(trtkit(*words).out.split())
    windowed = trtkit(*words, "--set", "llm.kv_window=used", "--json").json()
    assert windowed["kv_window"] == plan["kv_window"]
    step, without = windowed["step"]["decode"], plan["step"]["decode"]
    assert step["cache_bytes"] == 3 * 128 * per_token
    assert windowed["gpus"][0]["tpot"]["memory_ms"] == pytest.approx(used, rel=1e-3)  # and the same input
    copied = (step["fused_bytes"] - step["cache_bytes"]) - (without["fused_bytes"] - without["cache_bytes"])
    assert abs(copied - 2 * step["cache_bytes"]) < 1000  # and the input of their places
    assert "window copies" in trtkit(*words, "--details", "--set", "llm.kv_window=used").out


def test_plan_for_people_fits_80_columns_and_says_what_it_assumes(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("plan", "llama-2-7b", "--gpu", "t4,gb10", "--price", "0.5", "--details")
    assert ran.code == 0
    tables, assumed = ran.out.split("assumptions:")
    columns = tables[tables.index("prefill: work by kind") :].splitlines()
    assert [line for line in columns if len(line.rstrip()) > 80 and not line.startswith("*")] == []
    for part in (
        "llama, 32 layers",
        "512.0 KiB per token",
        "KV cache",
        "decode: work by kind of layer",
        "t4: by batch size",
        "gb10: other formats",
    ):
        assert part in tables
    assert re.search(r"^gb10 +yes .*\?", tables, re.MULTILINE), "no rate of fp16 is known of a GB10"
    assert re.search(r"^t4 +yes .* memory ", tables, re.MULTILINE)
    assert "times are floors" in assumed
    assert tables.index("best case") < tables.index("llama, 32 layers") < tables.index("prefill: work by kind")
    short = trtkit("plan", "llama-2-7b", "--gpu", "t4,gb10", "--price", "0.5").out
    assert len(short.splitlines()) < 30
    assert short.startswith("best case")
    assert re.search(r"^backends +tensorrt, tensorrt_rtx \(t4, gb10\)", short, re.MULTILINE)
    assert short.rstrip().endswith("`--details`.")


def test_a_printed_plan_is_the_commands_table(tiny: Path, trtkit: Callable[..., Ran]) -> None:
    printed = str(trtkit_api.plan(tiny, ["l4"]))
    shown = [line.rstrip() for line in trtkit("plan", tiny, "--gpu", "l4").out.rpartition("\n\n")[0].splitlines()]
    assert printed.splitlines() == shown
    assert "backends" in printed


def test_bundle_is_planned_for_up_to_its_own_slots(
    workspace: Path, trtkit: Callable[..., Ran], refuses: Callable[..., str]
) -> None:
    tiny_llm.save(workspace / "tiny")
    config = {"source": {"hf": "tiny"}, "precision": "fp16"}
    config["llm"] = {"max_batch_size": 4, "max_sequence_length": 64, "max_prefill_length": 16}
    (workspace / "tiny.yaml").write_text(json.dumps(config))
    assert trtkit("build", "tiny.yaml", "-o", "bundle", "-q").code == 0
    plan = trtkit("plan", "bundle", "--gpu", "rtx4090", "--json").json()
    decoder = json.loads((workspace / "bundle" / "manifest.json").read_text())["decoder"]
    for key in ("parameters", "weight_bytes", "kv_bytes_per_token"):
        assert plan["model"][key] == decoder[key]
    assert plan["workload"]["concurrency"] == 4
    assert plan["workload"]["chunk"] == 16
    assert plan["model"]["max_length"] == 64
    said = refuses("plan", "bundle", "--input-len", 60, "--output-len", 5, code=2)
    assert "60 + 5 = 65 tokens exceed the model's limit of 64" in said
    assert "a bundle is already built" in refuses("plan", "bundle", "--set", "precision=fp32", code=2)


def test_folder_is_planned_for_as_its_config_says_that_it_is_quantized(
    tiny: Path, trtkit: Callable[..., Ran], refuses: Callable[..., str]
) -> None:
    words, file = ("plan", tiny, "--gpu", "l4", "--set", "precision=fp16", "--json"), tiny / "config.json"
    fields, plain = json.loads(file.read_text()), trtkit(*words).json()["model"]
    asked = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": True}
    file.write_text(json.dumps({**fields, "quantization_config": asked}))
    model = trtkit(*words).json()["model"]
    matrices = 2 * (2 * 48 * 48 + 2 * 16 * 48 + 3 * 48 * 80)
    assert plain["weight_bytes"] - model["weight_bytes"] == matrices * (16 - 5) / 8  # 4 bits, and 16 for 16 of them
    assert model["quantized"] == "14 layers int4 by 16"
    file.write_text(json.dumps({**fields, "quantization_config": {"quant_method": "hqq"}}))
    assert "`quant_method` is `hqq`" in refuses(*words[:-1], code=2)


def test_a_plan_says_how_fp32_is_computed_and_what_is_reserved(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    tiny_llm.save(workspace / "tiny")
    text = " ".join(trtkit("plan", "./tiny", "--gpu", "l4", "--details").out.split())
    assert "fp32 products run in fp32: trtkit builds without TF32" in text
    assert re.search(r"sampling [\d.]+ \w+, reserve [\d.]+ GiB", text)


def test_quantized_bundle_is_planned_for_as_it_is_and_as_its_config_says(
    workspace: Path, trtkit: Callable[..., Ran], refuses: Callable[..., str]
) -> None:
    tiny_llm.save(workspace / "tiny", hidden_size=384, intermediate_size=512)
    (workspace / "text.txt").write_text(tiny_llm.TEXT * 4, encoding="utf-8")
    config: dict[str, Any] = {"source": {"hf": "tiny"}, "precision": "fp16"}
    config["llm"] = {"max_batch_size": 4, "max_sequence_length": 64, "max_prefill_length": 16}
    config["target"] = "sm89"
    config["quantize"] = {"method": "int8_wo", "kv_cache": "int8", "layers": {"*.mlp.*": "int4_wo"}, "block": 128}
    config["quantize"]["calibration"] = {"data": "text.txt", "samples": 2, "length": 32}
    (workspace / "tiny.yaml").write_text(json.dumps(config))
    assert trtkit("build", "tiny.yaml", "-o", "bundle", "-q").code == 0
    asked = ("--gpu", "l4,t4", "--input-len", 40, "--output-len", 20, "--json")
    built, meant = (trtkit("plan", path, *asked).json() for path in ("bundle", "tiny.yaml"))
    assert built["layers"] == meant["layers"]
    assert built["step"] == meant["step"]
    decoder = json.loads((workspace / "bundle" / "manifest.json").read_text())["decoder"]
    for plan in (built, meant):
        assert plan["model"]["weight_bytes"] == pytest.approx(decoder["weight_bytes"], rel=0.01)
        assert plan["model"]["kv_bytes_per_token"] == decoder["kv_bytes_per_token"]
        assert [gpu["takes_precision"] for gpu in plan["gpus"]] == [True, False]  # int4 needs SM80
        said = "8 layers int8, 6 layers int4 by 128; caches int8"
        assert plan["model"]["quantized"] == said
    found = trtkit("inspect", "bundle", "--json").json()["quantized"]
    assert found == {"method": "int8_wo", "blocks": [128], "kv_cache": "int8", "layers": 14, "said": said}
    assert re.search(rf"^quantized +int8_wo: {said}", trtkit("inspect", "bundle").out, re.MULTILINE)
    assert "type int4 needs SM80: not on sm75" in refuses("plan", "tiny.yaml", "--target", "sm75", code=2)


def test_vision_network_is_planned_for_over_the_batch(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    models.save(models.classifier(), workspace / "m.onnx")
    plan = trtkit("plan", "m.onnx", "--gpu", "t4", "--concurrency", 4, "--price", 0.36, "--json").json()
    gpu = plan["gpus"][0]
    assert plan["workload"]["profile"] == [1, 8]
    conv = next(row for row in plan["layers"] if row["group"] == "convolutions")
    assert conv["run"]["flops"] == 2 * 4 * 8 * 16 * 16 * 3 * 9
    one, four = gpu["curve"][0], gpu["curve"][2]
    assert (one["batch"], four["batch"]) == (1, 4)
    assert four["latency_ms"] == gpu["latency_ms"]
    assert gpu["images_per_second"] == pytest.approx(4e3 / gpu["latency_ms"])
    assert gpu["cost_per_million_images"] == pytest.approx(0.36 / 3600 / gpu["images_per_second"] * 1e6)


def test_a_load_says_how_many_gpus_carry_it_and_what_they_cost_a_month(
    trtkit: Callable[..., Ran], workspace: Path
) -> None:
    words = (
        "llama-3.1-8b",
        "--gpu",
        "t4,l4,h100",
        "--price",
        "l4=0.7",
        "--requests-per-second",
        20,
        "--concurrency",
        16,
    )
    plan = trtkit("plan", *words, "--json").json()
    turing, l4, h100 = plan["gpus"]
    assert turing["load"] is None  # bf16 is not for Turing
    each = l4["output_tokens_per_second"] / 128
    assert l4["load"] == {
        "requests_per_second": 20,
        "per_gpu": pytest.approx(each),
        "gpus": math.ceil(20 / each),
        "cost_per_month": pytest.approx(math.ceil(20 / each) * 0.7 * 730),
    }
    assert (h100["load"]["gpus"], h100["load"]["cost_per_month"]) == (1, None)
    assert h100["matmul_efficiency"] == {"bf16": 0.803, "fp8": 0.709}
    ran = trtkit("plan", *words, "--html", "load.html")
    assert "20 requests/s at best; a month has 730 hours" in " ".join(ran.out.split())
    page = Page((workspace / "load.html").read_text())
    assert f"{math.ceil(20 / each) * 0.7 * 730:,.0f}" in page.cells
    assert "bf16 80.3 %, fp8 70.9 % of the rate" in page.text


def test_page_shows_every_kind_of_layer_and_loads_nothing(
    tiny: Path, trtkit: Callable[..., Ran], workspace: Path
) -> None:
    plan = trtkit("plan", tiny, "--gpu", "h200,gb10", "--html", "plan.html", "--json").json()
    page = Page((workspace / "plan.html").read_text())
    assert {row["group"] for row in plan["layers"]} <= set(page.cells)
    curves, *roofs = page.specs
    computing = [row for row in plan["layers"] for phase in ("prefill", "decode") if row[phase]["flops_per_byte"] > 0]
    assert [svg(spec).count('aria-roledescription="circle"') for spec in roofs] == [len(computing) + 2] * len(
        plan["gpus"]
    )
    assert len(rows(curves)) == sum(len(gpu["curve"]) for gpu in plan["gpus"])
    assert "fp8 cache" in page.cells
    assert "h200: several GPUs over NVLink 4" in page.text
    assert "so the page has no roofline for it" in trtkit_page(trtkit, tiny, workspace, "thor")
    assert list(workspace.glob(".*partial")) == []


def trtkit_page(trtkit: Callable[..., Ran], tiny: Path, workspace: Path, gpu: str) -> str:
    """Return the page of a plan in a type that the GPU's row has no rate of."""
    words = ("--gpu", gpu, "--html", "other.html", "--set", "precision=bf16", "-q")
    assert trtkit("plan", tiny, *words).code == 0
    return (workspace / "other.html").read_text()


def test_published_models_keep_their_precision() -> None:
    assert find_model("llama-3.1-8b").config.precision == "bf16"
    assert find_model("llama-2-7b", ["precision=fp32"]).config.precision == "fp32"


def test_list_of_gpus_names_sources(trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("plan", "--list-gpus", "--gpu", "gb10,h200")
    assert ran.code == 0
    assert "memory is shared with the CPU" in ran.out
    assert "read 2026-" in ran.out
    rows = trtkit("plan", "--list-gpus", "--json").json()
    assert len(rows) == 28
    assert {row["gpu"] for row in rows if not row["backends"]} == {"v100", "mi300x", "m2ultra", "br100"}
    assert {row["gpu"] for row in rows if row["untested_backends"]} == {"a100-40", "a100-80", "a30"}


def test_what_no_one_has_tested_on_a_gpu_is_said(trtkit: Callable[..., Ran], tiny: Path) -> None:
    assert "trt rtx (untested)" in trtkit("plan", "--list-gpus", "--gpu", "a100-40").out
    assert "untested" not in trtkit("plan", "--list-gpus", "--gpu", "l4").out
    assert "tensorrt, tensorrt_rtx (untested)" in trtkit("plan", tiny, "--gpu", "a100-40", "--details").out


@pytest.mark.slow
def test_commands_of_the_page_run(tmp_path: Path) -> None:
    (script,) = blocks(DOCS / "planning.md", "bash")
    printed = run_script(script.text, tmp_path)
    assert "325.2 GiB" in printed
    assert "512.0 KiB per token" in printed
    assert (tmp_path / "plan.html").is_file()


@pytest.mark.usefixtures("one_export")
@pytest.mark.parametrize("compose", ["fused", "chained"])
def test_a_hybrid_is_planned_for_at_the_batch_that_was_described(
    workspace: Path, trtkit: Callable[..., Ran], refuses: Callable[..., str], compose: str
) -> None:
    model = hybrids.saved(hybrids.CASES[0], workspace / "vit")
    Path("vit.yaml").write_text(f"source: {{hf: vit}}\ncompose: {compose}\n")
    plan = trtkit("plan", "vit.yaml", "--gpu", "l4", "--json").json()
    assert (plan["kind"], plan["workload"]["profile"]) == ("vision", [1, 1])
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert plan["model"]["weight_bytes"] == pytest.approx(weights, rel=0.01)  # class token and positions are folded
    model.set_attn_implementation("eager")  # torch counts no products inside its fused attention
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, 30, 18))
    products = sum(plan["step"]["run"]["products"].values())
    assert products == pytest.approx(counter.get_total_flops(), rel=0.02)  # attention's softmax is not torch's product
    assert plan["gpus"][0]["fits"]
    assert "takes batch 1 only, not 4" in refuses("plan", "vit.yaml", "--concurrency", 4, code=2)


def test_a_vlm_is_planned_for_by_its_language_model_and_says_so(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    vlm = tiny_vlm.vlms()[0]
    folder = tiny_vlm.folder_of(vlm)
    Path("vlm.yaml").write_text(f"source: {{hf: {folder}}}\nllm: {{max_batch_size: 2}}\n")
    text_model = tiny_vlm.model_of(vlm).get_decoder()
    for path in ("vlm.yaml", folder):
        plan = trtkit("plan", path, "--gpu", "l4", "--input-len", 20, "--output-len", 4, "--json").json()
        assert plan["kind"] == "llm"
        assert plan["model"]["layers"] == text_model.config.num_hidden_layers
        assert "the vision tower is not counted, the language model is" in plan["assumptions"]


def test_tied_embeddings_next_to_an_engine_are_counted_twice(trtkit: Callable[..., Ran]) -> None:
    """Qwen3 0.6B has 151,936 tokens of 1,024 numbers, which are its LM head too; Qwen3 8B has both apart."""
    more = []
    for name in ("qwen3-0.6b", "qwen3-8b"):
        words = ("plan", name, "--gpu", "h100", "--json")
        memory = [trtkit(*words, *own).json()["gpus"][0]["memory"] for own in ((), ("--set", "llm.inputs=embeds"))]
        more.append(memory[1]["weights_bytes"] - memory[0]["weights_bytes"])
    assert more == [2 * 151_936 * 1024, 0]


def test_the_folder_of_a_vision_model_is_planned_for(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    ViTForImageClassification(ViTConfig(image_size=32, patch_size=16, num_labels=10, **sizes)).save_pretrained("vit")
    ran = trtkit("plan", "./vit", "--gpu", "l4", "--json")
    assert ran.code == 0, ran.err
    assert ran.json()["model"]["weight_bytes"] < 2**20


def test_stages_in_turn_are_planned_for_a_host(trtkit: Callable[..., Ran]) -> None:
    """OPT-175B on a T4 with 208 GB of host memory: caches on disk are the fastest, as in FlexGen."""
    words = ("plan", "opt-175b", "--gpu", "t4", "--input-len", 512, "--output-len", 32)
    machine = ("--host-memory", 208, "--disk", "2/1")
    plans = trtkit(*words, *machine, "--json").json()["gpus"][0]["offload"]
    assert [plan["caches"] for plan in plans] == ["device", "host", "disk"]
    assert max(plans, key=lambda plan: plan["output_tokens_per_second"])["caches"] == "disk"
    assert 0.5 < plans[2]["output_tokens_per_second"] < 1  # FlexGen measured 0.69
    assert plans[2]["disk_share"] > 0.3
    assert trtkit(*words, "--json").json()["gpus"][0]["offload"] == []
    table = trtkit(*words, *machine, "--details").out
    assert "t4: 96 stages in turn (`--offload`)" in table
    assert "disk    32 x 32" in table
