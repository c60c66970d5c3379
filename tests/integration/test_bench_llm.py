"""`trtkit bench` of language models: loads on a real engine, transformers as a contender, AIPerf's names and files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support import tiny_chat
from tests.unit.benchmarking.clocks import VirtualClock
from trtkit import LLM
from trtkit.benchmarking.llm import load_result
from trtkit.benchmarking.load import peak_concurrency
from trtkit.benchmarking.schedules import Schedule
from trtkit.benchmarking.static_batches import TransformersServer
from trtkit.benchmarking.text_server import EngineServer
from trtkit.benchmarking.workload import Lengths, Work, synthetic_work
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Ran

    Run = Callable[..., Ran]

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/aiperf_export.json").read_text())
SHORT = ("--unverified", "--input-len", 12, "--output-len", 5, "--requests", 6, "-q")
VOCAB = 256


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat.build(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def llm(bundle: Path) -> Iterator[LLM]:
    with LLM(bundle) as opened:
        yield opened


def mixed(seed: int = 0) -> list[Work]:
    return synthetic_work(Lengths(12, 6, 4, 2), 9, VOCAB, seed)


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_a_closed_loop_keeps_so_many_under_way(llm: LLM, concurrency: int) -> None:
    work = mixed()
    served = EngineServer(llm, "fp32").serve(work, Schedule("closed", concurrency))
    assert peak_concurrency(served.records) == concurrency
    assert [len(record.token_times_s) for record in served.records] == [each.output_tokens for each in work]
    assert [record.input_tokens for record in served.records] == [len(each.prompt_ids) for each in work]
    for record in served.records:
        assert record.due_s == record.sent_s < record.token_times_s[0] <= record.ended_s
        assert list(record.token_times_s) == sorted(record.token_times_s)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_transformers_gives_the_same_tokens_in_static_batches(llm: LLM, bundle: Path, concurrency: int) -> None:
    work = mixed(3)
    ours = EngineServer(llm, "fp32").serve(work, Schedule("closed", concurrency))
    rival = TransformersServer(open_bundle(bundle).manifest.config)
    theirs = rival.serve(work, Schedule("closed", concurrency))
    assert theirs.tokens == ours.tokens  # padded prompts and masks do not change them
    assert [len(record.token_times_s) for record in theirs.records] == [each.output_tokens for each in work]
    assert peak_concurrency(theirs.records) <= concurrency
    assert theirs.records[0].sent_s == theirs.records[concurrency - 1].sent_s
    assert rival.computes.endswith("static batches, CPU, fp32")


def stalled(llm: LLM, monkeypatch: pytest.MonkeyPatch, at_step: int) -> VirtualClock:
    """Let each step take 10 ms of a clock, but one of them a second."""
    clock, steps, step = VirtualClock(), [], llm.frontend.step

    def slow_step() -> Any:
        steps.append(0)
        clock.sleep(1.0 if len(steps) == at_step else 0.01)
        return step()

    monkeypatch.setattr(llm.frontend, "step", slow_step)
    return clock


def test_a_stalled_engine_shows_in_requests_that_were_due_meanwhile(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stalled(llm, monkeypatch, at_step=5)
    due = tuple(index * 0.1 for index in range(15))
    work = synthetic_work(Lengths(8, 2), 15, VOCAB, 11)
    records = EngineServer(llm, "fp32", clock=clock).serve(work, Schedule("open", due_s=due)).records
    assert [record.due_s for record in records] == pytest.approx(due)
    slow = [index for index, record in enumerate(records) if record.time_to_first_token_s > 0.1]  # type: ignore[operator]
    assert slow[0] == 2  # under way at the fifth step: two steps a request
    assert set(range(3, 11)) <= set(slow)  # due during that second, though nothing could be sent
    assert max(record.service_s for record in records[3:]) < 0.15  # which latency from the sending would hide
    assert records[3].latency_s > 0.85


def test_metrics_follow_from_the_requests(bundle: Path, trtkit: Run) -> None:
    words = ["--concurrency", "1,3", "--goodput", "ttft:1e6", "--goodput", "e2e:1e-6", "--json"]
    found = trtkit("bench", bundle, *SHORT, *words).json()
    assert found["computes"] == "reference executor, CPU, fp32"
    assert [case["name"] for case in found["cases"]] == ["concurrency 1", "concurrency 3"]
    for case in found["cases"]:
        result = case["results"][0]
        requests, metrics = result["requests"], result["metrics"]
        tokens = [np.array(request["token_ms"]) for request in requests]
        due, ended = (np.array([request[name] for request in requests]) for name in ("due_ms", "ended_ms"))
        first = np.array([times[0] for times in tokens]) - due
        assert metrics["time_to_first_token"]["p90"] == pytest.approx(np.percentile(first, 90))
        means = [(times[-1] - times[0]) / (len(times) - 1) for times in tokens]
        assert metrics["inter_token_latency"]["p50"] == pytest.approx(np.median(means))
        gaps = np.concatenate([np.diff(times) for times in tokens])
        assert metrics["inter_chunk_latency"]["max"] == pytest.approx(gaps.max())
        assert metrics["request_latency"]["avg"] == pytest.approx(np.mean(ended - due))
        duration = (ended.max() - due.min()) / 1e3
        assert metrics["output_token_throughput"]["avg"] == pytest.approx(30 / duration)
        assert metrics["request_throughput"]["avg"] == pytest.approx(6 / duration)
        assert metrics["goodput"] == {"unit": "requests/sec", "avg": 0.0}
        assert metrics["output_sequence_length"]["avg"] == 5


def test_rounds_have_other_prompts_and_shared_beginnings_are_found_in_the_cache(bundle: Path, trtkit: Run) -> None:
    words = ["--rounds", 3, "--json"]
    alone = trtkit("bench", bundle, *SHORT, *words).json()["cases"][0]["results"][0]
    assert (len(alone["requests"]), alone["reused_tokens"]) == (18, 0)
    begins = ["--input-len", 40, "--shared-tokens", 32]
    shared = trtkit("bench", bundle, *SHORT, *begins, *words).json()["cases"][0]["results"][0]
    assert shared["reused_tokens"] >= 15 * 32


def test_transformers_beside_the_bundle_in_turns(bundle: Path, trtkit: Run) -> None:
    found = trtkit("bench", bundle, *SHORT, "--concurrency", 3, "--compare", "transformers", "--json").json()
    case = found["cases"][0]
    ours, theirs = case["results"]
    assert found["rules"]["rounds"] == 3
    assert len(ours["requests"]) == len(theirs["requests"]) == 18
    assert theirs["same_tokens"] == 1.0
    assert [ratio["metric"] for ratio in case["ratios"]] == [
        "request_latency",
        "time_to_first_token",
        "inter_token_latency",
    ]
    for ratio in case["ratios"]:
        assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
        mine, its = (np.median(result["samples"][ratio["metric"]]) for result in (ours, theirs))
        assert ratio["ratio"] == pytest.approx(mine / its)


def test_a_trace_and_a_rate_send_when_requests_are_due(bundle: Path, workspace: Path, trtkit: Run) -> None:
    rows = [{"timestamp": 500 + 40 * i, "input_length": 7 + i, "output_length": 2 + i % 3} for i in range(6)]
    Path("trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--unverified", "-q", "--json"]
    case = trtkit("bench", bundle, *words, "--trace", "trace.jsonl", "--speed", 2).json()["cases"][0]
    requests = case["results"][0]["requests"]
    assert case["name"] == "trace, 2 times as fast"
    assert [request["due_ms"] for request in requests] == pytest.approx([20 * i for i in range(6)])
    assert [request["input_tokens"] for request in requests] == [7 + i for i in range(6)]
    assert [len(request["token_ms"]) for request in requests] == [2 + i % 3 for i in range(6)]
    cases = trtkit("bench", bundle, *SHORT, "--request-rate", "50,200", "--json").json()["cases"]
    assert [each["name"] for each in cases] == ["50 requests/s, poisson", "200 requests/s, poisson"]
    for request in (request for each in cases for request in each["results"][0]["requests"]):
        assert request["sent_ms"] >= request["due_ms"]


def test_prompts_of_a_file(bundle: Path, workspace: Path, trtkit: Run) -> None:
    lines: list[dict[str, Any]] = [{"prompt": "the sky"}, {"prompt_token_ids": [5, 6, 7], "max_tokens": 3}]
    Path("p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ["--unverified", "-q", "--prompts", "p.jsonl", "--requests", 3, "--output-len", 6, "--json"]
    requests = trtkit("bench", bundle, *words).json()["cases"][0]["results"][0]["requests"]
    assert [len(request["token_ms"]) for request in requests] == [6, 3, 6]
    assert requests[1]["input_tokens"] == 3


def test_aiperf_files_have_its_names_units_and_statistics(bundle: Path, workspace: Path, trtkit: Run) -> None:
    assert trtkit("bench", bundle, *SHORT, "--request-rate", 100, "--aiperf", "out", "--save", "r.json").code == 0
    own = json.loads(Path("r.json").read_text())["cases"][0]["results"][0]
    found = json.loads(Path("out/profile_export_aiperf.json").read_text())
    assert found["schema_version"] == GOLDEN["schema_version"]
    metrics = {name: each for name, each in found.items() if isinstance(each, dict) and "unit" in each}
    shared = metrics.keys() & GOLDEN["metrics"].keys()
    assert {"request_latency", "time_to_first_token", "inter_token_latency", "output_token_throughput"} < shared
    assert metrics.keys() - shared <= {
        "input_sequence_length",
        "total_isl",
        "error_request_count",
    }  # of other endpoints
    for name in shared:
        wanted = GOLDEN["metrics"][name]
        assert {"unit": metrics[name]["unit"], "statistics": [key for key in metrics[name] if key != "unit"]} == wanted
    waited = np.array([request["sent_ms"] - request["due_ms"] for request in own["requests"]])
    difference = metrics["effective_latency"]["avg"] - metrics["request_latency"]["avg"]
    assert difference == pytest.approx(waited.mean(), abs=1e-6)
    lines = [json.loads(line) for line in Path("out/profile_export.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    assert all(set(line["metadata"]) <= set(GOLDEN["request_metadata"]) for line in lines)
    mean = np.mean([line["metrics"]["time_to_first_token"]["value"] for line in lines])
    assert mean == pytest.approx(metrics["time_to_first_token"]["avg"])
    rows = list(csv.reader(Path("out/profile_export_aiperf.csv").read_text().splitlines()))
    headings = {row[0] for row in rows if row and row[0] != "Metric"}
    known = set(GOLDEN["csv_headings"])
    own_only = {"Input Sequence Length (tokens)", "Total Input Sequence Length (tokens)", "Error Request Count"}
    assert headings - known <= own_only
    assert rows[0][0] == "Metric"


def test_several_cases_have_a_folder_each(bundle: Path, workspace: Path, trtkit: Run) -> None:
    trtkit("bench", bundle, *SHORT, "--concurrency", "1,2", "--aiperf", "out")
    assert sorted(path.name for path in Path("out").iterdir()) == ["concurrency-1-trtkit", "concurrency-2-trtkit"]


def test_the_table_and_csv_say_what_computes(bundle: Path, workspace: Path, trtkit: Run) -> None:
    ran = trtkit("bench", bundle, *SHORT, "--concurrency", 2, "--goodput", "ttft:1e6", "--csv", "r.csv")
    text = " ".join(ran.out.split())
    for part in ("concurrency 2", "reference executor, CPU", "TTFT ms", "p50/99", "good/s", "UNVERIFIED"):
        assert part in text
    rows = list(csv.DictReader(Path("r.csv").read_text().splitlines()))
    assert {row["computes"] for row in rows} == {"reference executor, CPU, fp32"}
    assert all(row["verification"].startswith("UNVERIFIED") for row in rows)
    assert {"time_to_first_token", "goodput"} <= {row["metric"] for row in rows}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["--input-len", 90, "--output-len", 20],
            1,
            "90 input and 20 output tokens exceed the 96 that a slot",
        ),
        (["--shared-tokens", 200], 1, "--shared-tokens: 200 shared tokens do not fit in prompts of 128"),
        (
            ["--compare", "onnxruntime", "--input-len", 4],
            1,
            "cannot compare a language model with `onnxruntime`",
        ),
        (["--goodput", "fast", "--input-len", 4], 1, "--goodput: `fast` is not an objective"),
        (["--trace", "none.jsonl"], 1, "none.jsonl: the trace cannot be read"),
        (["--concurrency", 1, "--request-rate", 2], 2, "--concurrency and --request-rate cannot be combined"),
        (["--batch", 2], 2, "--batch does not apply to language models"),
        (["--request-rate", 1, "--compare", "transformers", "--input-len", 4], 1, "transformers runs fixed batches"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    words: list[Any], code: int, message: str, bundle: Path, workspace: Path, trtkit: Run
) -> None:
    ran = trtkit("bench", bundle, "--unverified", "-q", *words)
    assert (ran.code, ran.out, message in " ".join(ran.err.split())) == (code, "", True), ran.err
    assert list(workspace.iterdir()) == []


def test_failed_requests_are_in_no_latency() -> None:
    from trtkit.benchmarking.metrics import RequestRecord

    class Nobody:
        name, computes = "nobody", "nothing"

    records = [RequestRecord(0, 0, 1, (0.5, 1.0), 3), RequestRecord(0, 0, 9, (), 3, "out of memory")]
    result = load_result(Nobody(), records, {"request_latency": 1e5})  # type: ignore[arg-type]
    latency = result.distribution("request_latency")
    assert latency is not None
    assert latency.max == 1000
    assert result.metrics["good_request_count"].avg == 1
    assert result.requests[1].error == "out of memory"


@pytest.mark.slow
def test_smollm2_beside_transformers(tmp_path: Path, trtkit: Run) -> None:
    path = build_bundle(load_config("llama", ("precision=fp32",)), tmp_path / "llama", new_runner()).bundle.path
    words = ["--input-len", 16, "--output-len", 4, "--requests", 2, "--rounds", 2, "--concurrency", 2]
    case = trtkit("bench", path, "--unverified", *words, "--compare", "transformers", "--json", "-q").json()["cases"][0]
    assert case["results"][1]["same_tokens"] == 1.0
    assert len(case["results"][0]["samples"]["time_to_first_token"]) == 4
