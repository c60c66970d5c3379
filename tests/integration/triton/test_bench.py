"""`trtkit bench --url` against a real tritonserver."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_bench_vision import QUICK
from trtkit import LLM, Load, bench
from trtkit.benchmarking.request import ServedModel
from trtkit.benchmarking.schedules import Schedule
from trtkit.benchmarking.served import Endpoint, ServedText
from trtkit.benchmarking.text_server import EngineServer
from trtkit.benchmarking.workload import Lengths, synthetic_work

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from tests.support.triton import Served

    Run = Callable[..., Ran]


def url(served: Served, protocol: str = "grpc") -> str:
    return f"{protocol}://{served.grpc if protocol == 'grpc' else served.http}"


@pytest.mark.parametrize("protocol", ["grpc", pytest.param("http", marks=pytest.mark.slow)])
def test_a_served_model_gives_the_same_tokens_and_their_times(tiny_folder: Path, served: Served, protocol: str) -> None:
    work = synthetic_work(Lengths(12, 6, 4, 2), 7, 200)
    found = ServedText(Endpoint(url(served, protocol), "chat")).serve(work, Schedule("closed", 3))
    with LLM(tiny_folder / "bundle") as llm:
        assert found.tokens == EngineServer(llm, "fp32").serve(work, Schedule("closed", 3)).tokens
    for record, each in zip(found.records, work, strict=True):
        assert len(record.token_times_s) == each.output_tokens
        assert record.sent_s < record.token_times_s[0] <= record.token_times_s[-1] <= record.ended_s


def test_a_language_model_has_the_same_metrics_at_a_rate(tiny_folder: Path, served: Served, trtkit: Run) -> None:
    words = ["--url", url(served), "--model", "chat", "--unverified", "--json", "-q"]
    load = ["--input-len", 9, "--output-len", 4, "--requests", 5, "--request-rate", 20]
    found = trtkit("bench", tiny_folder / "bundle", *words, *load).json()
    result = found["cases"][0]["results"][0]
    assert (result["contender"], result["computes"]) == ("served", f"Triton 2.51.0 at {url(served)}, model chat")
    assert result["metrics"]["output_sequence_length"]["avg"] == 4
    assert {"time_to_first_token", "inter_token_latency", "request_latency"} <= result["metrics"].keys()
    assert found["computes"] == result["computes"]


def test_a_network_over_the_wire_beside_the_bundle_in_process(
    vision_folder: Path, served_vision: Served, trtkit: Run
) -> None:
    words = ["--url", url(served_vision), "--model", "plain", "--batch", 2, "--unverified", "--json", *QUICK]
    case = trtkit("bench", vision_folder / "tiny", *words, "--compare", vision_folder / "tiny").json()["cases"][0]
    wire, here = case["results"]
    assert wire["computes"].startswith("Triton 2.51.0 at grpc://")
    assert here["computes"] == "reference executor, CPU, fp32"
    assert here["difference"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(("words", "peak"), [(("--concurrency", "1,3"), 3), (("--request-rate", 200), None)])
def test_a_load_on_a_network_counts_requests_and_samples(
    vision_folder: Path, served_vision: Served, trtkit: Run, protocol: str, words: tuple[Any, ...], peak: int | None
) -> None:
    common = ("--url", url(served_vision, protocol), "--model", "plain", "--batch", 2, "--unverified", "--json", "-q")
    found = trtkit("bench", vision_folder / "tiny", *common, "--requests", 12, "--goodput", "e2e:1e6", *words).json()
    for case in found["cases"]:
        (result,) = case["results"]
        requests, metrics = result["requests"], result["metrics"]
        assert (len(requests), metrics["error_request_count"]["avg"]) == (12, 0)
        spans = [(each["due_ms"], each["sent_ms"], each["ended_ms"]) for each in requests]
        assert result["samples"]["latency"] == pytest.approx(
            [ended - due for due, _, ended in sorted(spans, key=lambda span: span[0])]
        )
        seconds = (max(ended for *_, ended in spans) - min(due for due, *_ in spans)) / 1e3
        assert metrics["throughput"]["avg"] == pytest.approx(2 * 12 / seconds)
        assert metrics["goodput"]["avg"] == pytest.approx(12 / seconds)
    assert found["ceiling"] == {"said": "none: the server's hardware is not known here"}
    if peak:
        assert [case["concurrency"] for case in found["cases"]] == [1, 3]
        events = sorted([(sent, 1) for _, sent, _ in spans] + [(ended, -1) for *_, ended in spans])
        assert max(itertools.accumulate(change for _, change in events)) == peak
    else:
        assert all(due <= sent for due, sent, _ in spans)
        assert sorted(due for due, *_ in spans)[-1] > 0


def test_python_measures_a_served_model_by_its_name_there(tiny_folder: Path, served: Served) -> None:
    server = ServedModel(url(served), "chat")
    load = Load(request_rate=[20.0], requests=3, input_tokens=9, output_tokens=4, goodput={"e2e": 1e6})
    report = bench(tiny_folder / "bundle", server=server, load=load, is_unverified=True)
    (result,) = report.cases[0].results
    assert (result.contender, report.cuda_graphs) == ("served", "as the server has it")
    assert result.metrics["good_request_count"].avg == 3


def test_a_load_needs_a_server_and_has_nobody_beside_it(
    vision_folder: Path, served_vision: Served, trtkit: Run
) -> None:
    words = ("bench", vision_folder / "tiny", "--unverified", "--concurrency", 2)
    for more, text in (
        ((), "--concurrency applies to language models, or to a server (--url)"),
        (
            ("--url", url(served_vision), "--model", "plain", "--compare", "onnxruntime"),
            "--compare cannot be combined with --url",
        ),
    ):
        ran = trtkit(*words, *more)
        assert (ran.code, text in ran.err) == (2, True), ran.err
    ran = trtkit(*words[:3], "--url", url(served_vision), "--model", "plain", "--goodput", "e2e:5")
    assert (ran.code, "`goodput` describes a load, and none is set" in ran.err) == (1, True), ran.err


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_request_that_the_server_refuses_is_counted(served: Served, protocol: str) -> None:
    work = synthetic_work(Lengths(200, 4), 1, 200) + synthetic_work(Lengths(8, 4), 2, 200)
    found = ServedText(Endpoint(url(served, protocol), "chat")).serve(work, Schedule("closed", 1))
    assert [bool(record.error) for record in found.records] == [True, False, False]
    assert "the server refuses: " in found.records[0].error


def test_what_is_no_endpoint_or_model_is_refused(
    vision_folder: Path, served_vision: Served, refuses: Callable[..., str]
) -> None:
    words = ["bench", vision_folder / "tiny", "--unverified", "-q"]
    assert refuses(*words, "--url", "localhost") == (
        "`localhost` is not a server address\nfix: use http://HOST:PORT, grpc://HOST:PORT or HOST:PORT"
    )
    assert refuses(*words, "--url", "grpc://127.0.0.1:9").startswith("grpc://127.0.0.1:9: no Triton server answers")
    assert refuses(*words, "--url", url(served_vision), "--model", "nobody") == (
        f"{url(served_vision)}: the server has no ready model `nobody`\n"
        "fix: give the model's name in the repository: --model NAME"
    )
    assert refuses(*words, "--url", url(served_vision)) == (
        f"{url(served_vision)}: `tiny` takes `image`, and the network `images`: it is an ensemble around the network\n"
        "fix: give the network's model: --model tiny_engine"
    )
