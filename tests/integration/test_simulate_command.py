"""`trtkit simulate`: figures of a stated machine, refusals, and its page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transformers import LlamaConfig

from trtkit.simulation.traffic import TrafficOptions, random_traffic, read_traffic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

TIMES = {
    "decode_step_s": 0.01,
    "decode_row_s": 1e-4,
    "decode_cached_token_s": 1e-7,
    "prefill_call_s": 0.002,
    "prefill_token_s": 1e-4,
}


IN_TURN = ("llama-2-7b", "--gpu", "t4", "--offload", "host", "--host-memory", 60)


@pytest.fixture
def times(tmp_path: Path) -> Path:
    path = tmp_path / "times.json"
    path.write_text(json.dumps(TIMES))
    return path


@pytest.fixture
def shallow(workspace: Path) -> Path:
    """The config of Llama 2 7B with two layers of 32: networks are written to be counted."""
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32_000}
    LlamaConfig(**sizes, num_hidden_layers=2, max_position_embeddings=4096, dtype="float16").save_pretrained(
        workspace / "llama"
    )
    return workspace / "llama"


def simulated(trtkit: Callable[..., Ran], *words: object) -> dict[str, Any]:
    ran = trtkit("simulate", *words, "--json")
    assert ran.code == 0, ran.err
    data: dict[str, Any] = json.loads(ran.out)
    return data


def test_one_request_takes_what_its_steps_take(trtkit: Callable[..., Ran], times: Path) -> None:
    words = ("--rate", 1, "--requests", 1, "--input-len", 300, "--output-len", 11)
    result = simulated(trtkit, "--times", times, *words)["result"]
    assert result["ttft"]["mean_ms"] == pytest.approx(2 + 300 * 0.1)
    assert result["tpot"]["mean_ms"] == pytest.approx(10 + 0.1 + 1e-4 * (300 + 4.5))
    assert (result["requests"], result["dropped"], result["goodput"], result["cost_per_month"]) == (1, 0, None, None)


def test_a_trace_is_served_as_it_says(trtkit: Callable[..., Ran], times: Path, tmp_path: Path) -> None:
    """Two prompts share a block of 512 tokens; a third waits for the only slot until its deadline."""
    rows = [
        {"arrival_s": 0, "input_tokens": 600, "output_tokens": 5, "hash_ids": [7, 8]},
        {"arrival_s": 2, "input_tokens": 600, "output_tokens": 500, "hash_ids": [7, 9]},
        {"arrival_s": 3, "input_tokens": 20, "output_tokens": 5, "deadline_s": 1.5, "user": "a", "priority": 0},
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    result = simulated(trtkit, "--times", times, "--slots", 1, "--trace", trace)["result"]
    assert (result["requests"], result["dropped"]) == (3, 1)
    assert result["shared"] == pytest.approx(512 / 1200)


def test_a_trace_of_mooncake_or_azure_is_read_too(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 500, "input_length": 30, "output_length": 4}\n' * 2)
    traffic = read_traffic(trace)
    assert (len(traffic), traffic.arrival_s.tolist(), traffic.hash_ids) == (2, [0.0, 0.0], ())


def test_the_fewest_gpus_for_an_objective_are_found(trtkit: Callable[..., Ran], times: Path) -> None:
    words = ("--times", times, "--rate", 30, "--requests", 300, "--goodput", "ttft:500", "--price-per-hour", 2)
    found = simulated(trtkit, *words, "--find-gpus")
    shares = {each["gpus"]: each["goodput"]["share"] for each in found["tried"]}
    count = found["result"]["gpus"]
    assert shares[count] >= 0.99 > shares[count - 1]
    assert found["result"]["cost_per_month"] == count * 2 * 730
    assert list(shares) == sorted(shares)


def test_a_model_on_a_gpu_takes_the_times_of_its_plan(trtkit: Callable[..., Ran], shallow: Path) -> None:
    """One request on an idle GPU: TTFT and TPOT are the floors that `plan` shows, twice that at half the efficiency."""
    lengths = ("--input-len", 500, "--output-len", 41)
    words = (shallow, "--gpu", "h200", *lengths)
    load = ("--rate", 1, "--requests", 1, "--prefill-budget", 4096, "--batching", "separate")  # without idle tokens
    result = simulated(trtkit, *words, *load)["result"]
    plan = json.loads(trtkit("plan", *words, "--json").out)["gpus"][0]
    assert result["ttft"]["mean_ms"] == pytest.approx(plan["ttft"]["ms"], rel=0.01)
    assert result["tpot"]["mean_ms"] == pytest.approx(plan["tpot"]["ms"], rel=0.01)
    half = simulated(trtkit, *words, *load, "--efficiency", 0.5)
    assert half["result"]["latency"]["mean_ms"] == pytest.approx(2 * result["latency"]["mean_ms"], rel=0.01)


def test_a_model_on_several_gpus_takes_the_times_of_its_grid(trtkit: Callable[..., Ran], shallow: Path) -> None:
    """575 tokens are in as many parts as whole tiles, 576."""
    words = (shallow, "--gpu", "h100", "--input-len", 575, "--output-len", 41)
    settings = ("--set", "parallel.tensor=2", "--set", "parallel.pipeline=2")
    load = ("--rate", 1, "--requests", 1, "--prefill-budget", 4096, "--price-per-hour", 2)
    result = simulated(trtkit, *words, *settings, *load, "--replicas", 2)["result"]
    plans = trtkit("plan", *words, "--concurrency", 1, "--json").json()["gpus"][0]["grids"]
    plan = next(each for each in plans if (each["tensor"], each["pipeline"]) == (2, 2))
    assert result["ttft"]["mean_ms"] == pytest.approx(1e3 * plan["ttft_s"], rel=0.01)
    assert result["tpot"]["mean_ms"] == pytest.approx(1e3 * plan["tpot_s"], rel=0.01)
    assert (result["gpus"], result["cost_per_month"]) == (8, 8 * 2 * 730)


def test_links_of_ranks_that_share_tokens_take_longer_in_decode_steps(
    trtkit: Callable[..., Ran], shallow: Path
) -> None:
    words = (shallow, "--gpu", "h100", "--input-len", 500, "--output-len", 41)
    load = ("--rate", 1, "--requests", 1, "--prefill-budget", 4096)
    settings = ("--set", "parallel.tensor=2", "--set", "parallel.sequence=true")
    result = simulated(trtkit, *words, *settings, *load)["result"]
    plans = trtkit("plan", *words, *settings, "--concurrency", 1, "--json").json()["gpus"][0]["grids"]
    plan, without = (
        next(each for each in plans if each["gpus"] == each["tensor"] == 2 and bool(each["sequence"]) == shares)
        for shares in (True, False)
    )
    assert result["ttft"]["mean_ms"] == pytest.approx(1e3 * plan["ttft_s"], rel=0.03)  # with idle tokens
    assert result["tpot"]["mean_ms"] == pytest.approx(1e3 * plan["tpot_s"], rel=0.01)
    assert plan["tpot_s"] > without["tpot_s"]


def test_links_of_ranks_that_share_positions_are_counted(trtkit: Callable[..., Ran], shallow: Path) -> None:
    words = (shallow, "--gpu", "h100", "--input-len", 500, "--output-len", 41)
    settings = ("--set", "parallel.tensor=2", "--set", "parallel.context=2")
    result = simulated(trtkit, *words, *settings, "--rate", 1, "--requests", 1)["result"]
    plans = trtkit("plan", *words, *settings, "--concurrency", 1, "--json").json()["gpus"][0]["grids"]
    plan, without = (
        next(each for each in plans if each["gpus"] == each["tensor"] == 2 and bool(each["context"]) == shares)
        for shares in (True, False)
    )
    assert result["tpot"]["mean_ms"] == pytest.approx(1e3 * plan["tpot_s"], rel=0.01)
    assert plan["tpot_s"] > without["tpot_s"]


def test_caches_are_of_the_kind_that_the_config_says(trtkit: Callable[..., Ran]) -> None:
    words = ("llama", "--gpu", "l4", "--rate", 1, "--requests", 3)
    words = (*words, "--set", "llm.max_sequence_length=640")
    settings = ("--set", "llm.kv=paged", "--set", "llm.page_tokens=32")
    of_config, asked = (simulated(trtkit, *words, *own) for own in (settings, ("--kv", "paged", "--page-tokens", 32)))
    assert "pages of 32 tokens" in of_config["notes"][0]
    assert of_config["result"] == asked["result"]


def test_pages_that_are_copied_are_read_again_and_written(trtkit: Callable[..., Ran], shallow: Path) -> None:
    """Two layers of Llama 2 7B cache 32 KiB a token in fp16; an H200 reads 4.8 TB a second. 480 tokens are cached.

    Pages of 512 tokens are copied: a power of two, or the longest sequence, in whole pages.
    """
    words = (shallow, "--gpu", "h200", "--input-len", 460, "--output-len", 41, "--rate", 1, "--requests", 1)
    copied, in_place = (
        simulated(trtkit, *words, "--kv", kv)["result"]["tpot"]["mean_ms"] for kv in ("paged", "paged-in-place")
    )
    assert copied - in_place == pytest.approx(1e3 * (3 * 512 - 481) * 32 * 1024 / 4.8e12, rel=1e-3)


def test_a_plan_counts_copies_of_pages_as_the_simulation_does(trtkit: Callable[..., Ran], shallow: Path) -> None:
    """1007 + 33 tokens are 1024 on average while decoding, the power of two that an engine gathers; a slot has 1040."""
    words = (shallow, "--gpu", "h200", "--input-len", 1007, "--output-len", 33)
    one = ("--rate", 1, "--requests", 1, "--prefill-budget", 4096, "--kv", "paged", "--batching", "separate")
    result = simulated(trtkit, *words, *one)["result"]
    plan = trtkit("plan", *words, "--set", "llm.kv=paged", "--concurrency", 1, "--json").json()["gpus"][0]
    linear = trtkit("plan", *words, "--json").json()["gpus"][0]
    assert plan["tpot"]["ms"] == pytest.approx(result["tpot"]["mean_ms"], rel=0.002)
    assert plan["ttft"]["ms"] == pytest.approx(result["ttft"]["mean_ms"], rel=0.001)
    assert plan["tpot"]["ms"] - linear["tpot"]["ms"] == pytest.approx(
        1e3 * (3 * 1024 - 1040) * 2**15 / 4.8e12, abs=1e-7
    )


@pytest.mark.parametrize("window", ["full", "used"])
def test_linear_slots_are_read_as_the_plan_says(trtkit: Callable[..., Ran], shallow: Path, window: str) -> None:
    """Whole, or a power of two of the tokens in use, copied: 1,024 here while 513 to 545 are."""
    words = (shallow, "--gpu", "h200", "--input-len", 512, "--output-len", 33)
    words = (*words, "--set", "llm.max_sequence_length=2048", "--set", f"llm.kv_window={window}")
    one = ("--rate", 1, "--requests", 1, "--prefill-budget", 4096, "--kv", "linear", "--batching", "separate")
    result = simulated(trtkit, *words, *one)["result"]
    plan = trtkit("plan", *words, "--concurrency", 1, "--json").json()["gpus"][0]
    assert result["tpot"]["mean_ms"] == pytest.approx(plan["tpot"]["ms"], rel=1e-6)
    assert result["ttft"]["mean_ms"] == pytest.approx(plan["ttft"]["ms"], rel=1e-6)


def test_stages_in_turn_take_the_times_of_their_plan(trtkit: Callable[..., Ran]) -> None:
    """The best block of Llama 2 7B on a T4, all requests at once."""
    lengths = ("--input-len", 512, "--output-len", 32)
    planned = trtkit("plan", *IN_TURN[:3], "--host-memory", 60, "--concurrency", 1, *lengths, "--json")
    assert planned.code == 0, planned.err
    plans = {each["caches"]: each for each in planned.json()["gpus"][0]["offload"]}
    block = plans["host"]
    count = block["micro_batch"] * block["micro_batches"]
    report = simulated(trtkit, *IN_TURN, *lengths, "--requests", count)
    result = report["result"]
    assert result["output_tokens_per_second"] == pytest.approx(block["output_tokens_per_second"], rel=0.03)
    assert result["most_running"] == count
    assert f"32 stages in turn: blocks of {count} sequences of at most 544 tokens" in report["notes"][0]


def test_tables_and_a_page_show_the_figures(trtkit: Callable[..., Ran], times: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("--times", times, "--rate", 4, "--requests", 200, "--kv", "paged", "--html", page, "--goodput", "ttft:500")
    ran = trtkit("simulate", *words)
    assert ran.code == 0, ran.err
    assert all(name in ran.out for name in ("TTFT", "TPOT", "goodput", "requests/s"))
    text = page.read_text()
    assert text.count("<figure class='chart'>") == 2
    assert "share of requests" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give either MODEL with --gpu, or --times FILE"),
        (("llama-2-7b", "--rate", 1), "MODEL needs --gpu NAME"),
        (("--times", "times.json"), "give either --rate, or --trace FILE"),
        (("--times", "times.json", "--rate", 1, "--find-gpus"), "--find-gpus needs an objective"),
        (("--times", "times.json", "--rate", 1, "--host-cache-gib", 1), "--host-cache-gib needs MODEL"),
        (("llama-2-7b", "--gpu", "t4", "--rate", 1, "--disk", "2/1"), "--disk needs --offload"),
        (("llama-2-7b", "--gpu", "t4", "--offload", "host"), "--offload needs MODEL and --host-memory GB"),
        ((*IN_TURN, "--kv", "paged"), "--offload does not take --kv"),
        ((*IN_TURN, "--prefill-replicas", 1), "--offload does not take --prefill-replicas"),
        ((*IN_TURN, "--rate", 1, "--trace", "t.jsonl"), "give either --rate, or --trace FILE"),
    ],
)
def test_options_that_do_not_go_together_are_usage_errors(
    words: tuple[Any, ...], said: str, trtkit: Callable[..., Ran]
) -> None:
    ran = trtkit("simulate", *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("llama-2-7b", "--gpu", "h210", "--rate", 1), "unknown GPU `h210`\nfix: did you mean `h20"),
        (("--times", "nothing.json", "--rate", 1), "nothing.json: no step times: No such file or directory"),
        (("--times", "TIMES", "--trace", "nothing.jsonl"), "the trace cannot be read: No such file or directory"),
        (
            ("--times", "TIMES", "--rate", 1, "--input-len", 10, "--shared-tokens", 10),
            "--shared-tokens: prompts of 10 tokens cannot share 10\nfix: share fewer tokens than a prompt has",
        ),
        (
            ("--times", "TIMES", "--rate", 1, "--shared-tokens", 100, "--kv", "paged"),
            "--page-tokens: 100 shared tokens are not whole pages of 16\nfix: choose a size that divides them",
        ),
        (
            ("--times", "TIMES", "--rate", 50, "--requests", 50, "--find-gpus", "--goodput", "ttft:1"),
            "keep 0.0% of the requests within the objectives, and more would not help",
        ),
        (("mixtral-8x7b", "--gpu", "l4", "--rate", 1), "mixtral-8x7b needs 9"),
        (("llama-2-7b", "--gpu", "l4", "--rate", 1, "--slots", 500), "500 slots of 640 tokens do not fit L4; 27 do"),
        (
            ("llama-2-7b", "--gpu", "l4", "--rate", 1, "--set", "parallel.tensor=7"),
            "parallel.tensor: 7: does not divide 32 query",
        ),
        (
            ("mixtral-8x7b", "--gpu", "h200", "--rate", 1, "--set", "parallel.expert=2"),
            "parallel.expert: expert parallelism is not simulated",
        ),
    ],
)
def test_bad_input_is_refused(words: tuple[Any, ...], said: str, refuses: Callable[..., str], times: Path) -> None:
    assert said in refuses("simulate", *(times if word == "TIMES" else word for word in words), code=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "no step times"),
        ('{"decode_step_s": -1}', "`decode_step_s` is -1"),
        ('{"prefill_token_s": 1}', "missing 1 required positional argument: 'decode_step_s'"),
        ('{"decode_step_s": 1, "speed": 2}', "got an unexpected keyword argument 'speed'"),
    ],
)
def test_times_that_are_none_are_refused(text: str, said: str, refuses: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text(text)
    assert said in refuses("simulate", "--times", path, "--rate", 1, code=2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"arrival_s": 1}', "trace.jsonl:2: not a request: input_tokens is missing"),
        ('{"arrival_s": "x", "input_tokens": 1, "output_tokens": 1}', "trace.jsonl:2: not a request"),
        ('{"arrival_s": 1, "input_tokens": 0, "output_tokens": 1}', "a request of 0 input and 1 output tokens at 1 s"),
        ('{"arrival_s": 1, "input_tokens": 1, "output_tokens": 1, "deadline_s": -1}', "a deadline of -1 s has passed"),
        ("arrival_s", "trace.jsonl:2: not a request"),
    ],
)
def test_lines_that_are_no_requests_are_refused(
    line: str, said: str, refuses: Callable[..., str], tmp_path: Path, times: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"arrival_s": 0, "input_tokens": 1, "output_tokens": 1}\n' + line)
    assert said in refuses("simulate", "--times", times, "--trace", path, code=2)


@pytest.mark.parametrize("pattern", ["poisson", "bursty", "constant"])
def test_random_traffic_has_the_stated_moments(pattern: Any) -> None:
    options = TrafficOptions(20.0, 40_000, pattern, 3.0, 400, 100, 200.0, 50.0)
    traffic = random_traffic(options, 1 << 20)
    gaps = np.diff(traffic.arrival_s)
    cv = {"poisson": 1.0, "bursty": 3.0, "constant": 0.0}[pattern]
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06, abs=1e-6)
    assert traffic.input_tokens.mean() == pytest.approx(400, rel=0.02)
    assert traffic.input_tokens.std() == pytest.approx(200, rel=0.05)
    assert traffic.output_tokens.std() == pytest.approx(50, rel=0.05)
