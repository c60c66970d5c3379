"""Each claim that the pages make when they compare trtkit with other tools has tests that are collected."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.docs import DOCS, ROOT
from trtkit.cli.main import COMMANDS

PAGE = DOCS / "comparison.md"
_I = "tests/integration"
# The first cell of a row, or the bold words of a claim, and tests of what trtkit is said to have there.
TOOLS = {
    "trtexec": (
        f"{_I}/test_build.py::test_plan_is_one_that_tensorrt_made",
        f"{_I}/test_bench_vision.py::test_every_figure_follows_from_the_samples_and_says_what_computed",
        f"{_I}/test_inspect.py::test_onnx_file_config_and_bundle_tell_the_same_network",
    ),
    "Polygraphy": (
        f"{_I}/test_verify.py::test_a_network_out_of_tolerance_is_exit_3_and_shows_its_layers",
        f"{_I}/test_verify.py::test_the_html_report_is_written",
        f"{_I}/test_verify_fix.py::test_an_overflow_is_named_repaired_and_the_repaired_config_verifies",
    ),
    "Model Navigator": (
        f"{_I}/test_bench_vision.py::test_another_bundle_and_torch_are_rivals",
        f"{_I}/test_compare.py::test_int8_that_was_calibrated_on_the_wrong_pictures_loses",
        f"{_I}/test_deploy.py::test_a_pipeline_is_deployed_with_what_and_why",
    ),
    "AITune": (
        f"{_I}/test_build_module.py::test_a_module_is_built_and_answers_as_in_torch",
        f"{_I}/test_compare.py::test_a_language_model_by_perplexity_and_characters",
    ),
    "Model-Connect": (
        f"{_I}/test_hub.py::test_a_name_is_downloaded_built_and_answers",
        f"{_I}/test_llm_build.py::test_shipped_llm_config_builds_a_folder_of_its_family",
    ),
    "Torch-TensorRT": (
        f"{_I}/test_build_module.py::test_a_module_is_built_and_answers_as_in_torch",
        f"{_I}/test_crash.py::test_unsupported_operators_are_reported_all_at_once_with_advice",
    ),
    "ModelOpt": (
        f"{_I}/test_quantize_llm.py::test_layers_hold_the_bits_that_their_method_names",
        f"{_I}/test_quantize_budget.py::test_sensitivity_ranks_layers_and_a_budget_writes_its_choice",
    ),
    "Olive": (
        f"{_I}/test_compare.py::test_int8_that_was_calibrated_on_the_wrong_pictures_loses",
        f"{_I}/test_quantize_budget.py::test_layers_that_a_budget_leaves_may_have_another_method",
    ),
    "OpenVINO": (
        f"{_I}/test_build.py::test_two_lines_make_a_whole_bundle",
        f"{_I}/test_verify.py::test_a_right_network_is_exit_0_with_a_table_that_says_so",
        f"{_I}/triton/test_serve.py::test_it_serves_says_what_failed_and_stops_without_a_trace",
    ),
    "TensorRT-LLM": (
        f"{_I}/test_llm_build.py::test_llm_bundle_is_verified_against_transformers",
        f"{_I}/test_eval_command.py::test_perplexity_is_that_of_transformers",
        f"{_I}/dynamo/test_openai.py::test_a_conversation_is_answered",
        f"{_I}/triton/test_language_models.py::test_settings_mean_what_they_mean_here",
    ),
    "vLLM": (
        f"{_I}/test_hub.py::test_a_bundle_that_is_missing_is_built_first",
        f"{_I}/test_llm_api.py::test_answers_are_those_of_transformers",
        f"{_I}/dynamo/test_fields.py::test_a_field_is_what_the_docs_say",
    ),
    "SGLang": (
        f"{_I}/test_in_flight_batching.py::test_a_running_request_shares_its_beginning",
        f"{_I}/test_in_flight_batching.py::test_steps_are_launched_before_the_last_ones_tokens_are_known",
        f"{_I}/dynamo/test_openai.py::test_answers_follow_a_schema_an_expression_a_grammar_a_list",
        f"{_I}/dynamo/test_disaggregation.py::"
        "test_answers_are_the_same_and_prompts_are_not_computed_where_they_are_answered",
    ),
    "TensorRT Edge-LLM": (
        f"{_I}/test_in_flight_batching.py::test_requests_that_come_and_go_get_what_each_gets_alone",
        f"{_I}/test_speculation.py::test_speculation_changes_no_token",
        f"{_I}/test_mtp_bundles.py",
        f"{_I}/test_heads.py",
        f"{_I}/test_lora.py::test_eight_adapters_in_one_batch_of_sixteen_are_peft_s",
    ),
    "llama.cpp": (
        f"{_I}/test_gguf_smollm2.py::test_greedy_text_is_the_golden_one",
        f"{_I}/test_quantized_checkpoints.py::test_logits_are_those_of_transformers_on_the_dequantized_weights",
    ),
}
CLAIMS = {
    "and checks them without a GPU": (
        f"{_I}/test_build.py::test_plan_is_one_that_tensorrt_made",
        f"{_I}/test_verify.py::test_a_network_out_of_tolerance_is_exit_3_and_shows_its_layers",
    ),
    "directly as TensorRT networks": (
        f"{_I}/test_decoder_parity.py::test_fp32_logits_of_every_step_are_those_of_transformers",
        f"{_I}/test_decoder_parity.py::test_the_network_builds",
    ),
    "one engine": (
        f"{_I}/test_detr3d.py::test_detr3d_equals_the_torch_model",
        f"{_I}/test_hybrid_parity.py::test_outputs_are_those_of_transformers",
    ),
    "on the network itself": (
        f"{_I}/test_plan.py::test_vision_network_is_planned_for_over_the_batch",
        f"{_I}/test_inspect.py::test_resnet50_costs_what_is_published",
    ),
}
# Rows of the README's table in which trtkit's cell is not `no` or `not yet`.
README = {
    "ONNX vision models to TensorRT": (f"{_I}/test_build.py::test_two_lines_make_a_whole_bundle",),
    "language models as TensorRT engines": (f"{_I}/test_decoder_parity.py::test_the_network_builds",),
    "builds and checks engines without a GPU": CLAIMS["and checks them without a GPU"],
    "layer-by-layer comparison with a reference": TOOLS["Polygraphy"],
    "several GPUs: tensor, sequence, context, expert and pipeline parallel": (
        f"{_I}/parallel/test_run.py::test_requests_in_flight_get_what_one_rank_gives",
        f"{_I}/parallel/test_run.py::test_tokens_that_fill_the_shares_of_ranks_are_counted",
    ),
    "in-flight batching, guided output, speculation": (*TOOLS["SGLang"], *TOOLS["TensorRT Edge-LLM"][:2]),
    "paged KV cache, LoRA adapters per request": (
        f"{_I}/test_paged_build.py::test_a_paged_bundle_verifies_and_generates_with_little_memory",
        f"{_I}/test_lora.py::test_eight_adapters_in_one_batch_of_sixteen_are_peft_s",
    ),
    "server": (
        f"{_I}/dynamo/test_openai.py::test_a_conversation_is_answered",
        f"{_I}/triton/test_vision.py::test_an_image_is_answered_by_its_classes",
    ),
}
TESTS = sorted({test for proofs in (TOOLS, CLAIMS, README) for tests in proofs.values() for test in tests})


@cache
def functions(file: str) -> set[str]:
    """Return the names of a file's tests as pytest collects them: functions of the module that begin with `test_`."""
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def rows(text: str, tables: str) -> list[list[str]]:
    """Return the cells of the rows of tables whose first line begins with `tables`."""
    found = re.findall(rf"^\| {tables}.*\n\|[- |]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for table in found for line in table.splitlines()]


@pytest.mark.parametrize("test", TESTS)
def test_a_named_test_is_collected(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.fullmatch(r"tests/(\w+/)+test_\w+\.py", file)
    assert functions(file)
    assert not name or name in functions(file), f"{file} has no {name}"


def test_every_tool_has_tests() -> None:
    cells = rows(PAGE.read_text(encoding="utf-8"), "tool")
    names = [re.sub(r"\*\*(.+)\*\*.*", r"\1", first) for first, *_ in cells]
    assert names == list(TOOLS)
    assert [first for first, *rest in cells if len(rest) != 3 or not all(rest)] == []


def test_every_command_that_a_row_names_exists() -> None:
    """A command is named without `trtkit`, maybe with its options, whose names other tests check."""
    ours = " ".join(cells[2] for cells in rows(PAGE.read_text(encoding="utf-8"), "tool"))
    named = {words.split()[0] for words in re.findall(r"`([a-z][^`]*)`", ours)}
    assert len(named) > 8
    assert named <= COMMANDS.keys()


def test_every_claim_has_tests() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## What sets trtkit apart")[2].partition("\n## ")[0]
    bullets = re.split(r"^- ", section, flags=re.MULTILINE)[1:]
    assert [re.findall(r"\*\*(.+?)\*\*", bullet, re.DOTALL) for bullet in bullets] == [[claim] for claim in CLAIMS]


def test_every_yes_of_the_readme_has_tests() -> None:
    cells = rows((ROOT / "README.md").read_text(encoding="utf-8"), r"\| trtkit \|")
    assert [first for first, ours, *_ in cells if ours not in {"no", "not yet"}] == list(README)
