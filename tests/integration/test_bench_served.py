"""`trtkit bench --url` against a real tritonserver."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests import tiny_chat
from tests.integration.test_bench_vision import QUICK, build
from tests.triton import serving
from trtkit import LLM
from trtkit.benchmarking.schedules import Schedule
from trtkit.benchmarking.served import Endpoint, ServedText
from trtkit.benchmarking.text_server import EngineServer
from trtkit.benchmarking.workload import Lengths, synthetic_work
from trtkit.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran
    from tests.triton import Served

    Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundles `bundle`, a language model, and `tiny`, a classifier."""
    path = tmp_path_factory.mktemp("served")
    tiny_chat.build(path)
    build(path)
    return path


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    for name in ("bundle", "tiny"):
        main(["deploy", str(folder / name), "--repository", str(folder / "models"), "--name", name, "-q"])
    with serving(folder / "models") as server:
        yield server


def url(served: Served, protocol: str = "grpc") -> str:
    return f"{protocol}://{served.grpc if protocol == 'grpc' else served.http}"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_served_model_gives_the_same_tokens_and_their_times(folder: Path, served: Served, protocol: str) -> None:
    work = synthetic_work(Lengths(12, 6, 4, 2), 7, 200)
    found = ServedText(Endpoint(url(served, protocol), "bundle")).serve(work, Schedule("closed", 3))
    with LLM(folder / "bundle") as llm:
        assert found.tokens == EngineServer(llm, "fp32").serve(work, Schedule("closed", 3)).tokens
    for record, each in zip(found.records, work, strict=True):
        assert len(record.token_times_s) == each.output_tokens
        assert record.sent_s < record.token_times_s[0] <= record.token_times_s[-1] <= record.ended_s


def test_a_language_model_has_the_same_metrics_at_a_rate(folder: Path, served: Served, trtkit: Run) -> None:
    words = ["--url", url(served), "--model", "bundle", "--unverified", "--json", "-q"]
    load = ["--input-tokens", 9, "--output-tokens", 4, "--requests", 5, "--request-rate", 20]
    found = trtkit("bench", folder / "bundle", *words, *load).json()
    result = found["cases"][0]["results"][0]
    assert (result["contender"], result["computes"]) == ("served", f"Triton 2.51.0 at {url(served)}, model bundle")
    assert result["metrics"]["output_sequence_length"]["avg"] == 4
    assert {"time_to_first_token", "inter_token_latency", "request_latency"} <= result["metrics"].keys()
    assert found["computes"] == result["computes"]


def test_a_network_over_the_wire_beside_the_bundle_in_process(folder: Path, served: Served, trtkit: Run) -> None:
    words = ["--url", url(served), "--model", "tiny", "--batch", 2, "--unverified", "--json", *QUICK]
    case = trtkit("bench", folder / "tiny", *words, "--compare", folder / "tiny").json()["cases"][0]
    wire, here = case["results"]
    assert wire["computes"].startswith("Triton 2.51.0 at grpc://")
    assert here["computes"] == "reference executor, CPU, fp32"
    assert here["difference"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(("words", "peak"), [(("--concurrency", "1,3"), 3), (("--request-rate", 200), None)])
def test_a_load_on_a_network_counts_requests_and_samples(
    folder: Path, served: Served, trtkit: Run, protocol: str, words: tuple[Any, ...], peak: int | None
) -> None:
    common = ("--url", url(served, protocol), "--model", "tiny", "--batch", 2, "--unverified", "--json", "-q")
    found = trtkit("bench", folder / "tiny", *common, "--requests", 12, "--goodput", "e2e:1e6", *words).json()
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


def test_a_load_needs_a_server_and_has_nobody_beside_it(folder: Path, served: Served, trtkit: Run) -> None:
    words = ("bench", folder / "tiny", "--unverified", "--concurrency", 2)
    for more, said in (
        ((), "--concurrency is for language models, or for a server (--url)"),
        (("--url", url(served), "--model", "tiny", "--compare", "onnxruntime"), "leave out --compare"),
    ):
        ran = trtkit(*words, *more)
        assert (ran.code, said in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_request_that_the_server_refuses_is_counted(folder: Path, served: Served, protocol: str) -> None:
    work = synthetic_work(Lengths(200, 4), 1, 200) + synthetic_work(Lengths(8, 4), 2, 200)
    found = ServedText(Endpoint(url(served, protocol), "bundle")).serve(work, Schedule("closed", 1))
    assert [bool(record.error) for record in found.records] == [True, False, False]
    assert "the server refuses: " in found.records[0].error


def test_what_is_no_endpoint_or_model_is_refused(folder: Path, served: Served, refuses: Callable[..., str]) -> None:
    words = ["bench", folder / "tiny", "--unverified", "-q"]
    assert refuses(*words, "--url", "localhost") == (
        "`localhost` is no server's address\nfix: use http://HOST:PORT, grpc://HOST:PORT or HOST:PORT"
    )
    assert refuses(*words, "--url", "grpc://127.0.0.1:9").startswith("grpc://127.0.0.1:9: no Triton server answers")
    assert refuses(*words, "--url", url(served), "--model", "nobody") == (
        f"{url(served)}: the server has no model `nobody` that is ready\n"
        "fix: name the model as its repository does: --model NAME"
    )
