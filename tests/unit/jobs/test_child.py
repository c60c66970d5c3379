from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.jobs.toys import MEET, TooManyWordsError, Words
from trtkit.builder.jobs import BUILD_STAGE, DIGEST, Digests
from trtkit.config.schema import ModelConfig
from trtkit.errors import SourceError, TrtkitError
from trtkit.jobs.events import Phase, Progress, Step
from trtkit.jobs.job import Job
from trtkit.jobs.runner import ChildRunner, InlineRunner, Runner, inline_jobs, new_runner
from trtkit.sources.digest import SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.jobs.events import Event

BOTH = pytest.mark.parametrize("kind", [ChildRunner, InlineRunner])


def digest(runner: Runner, **source: str) -> Digests:
    return runner.run(DIGEST, ModelConfig.model_validate({"name": "m", "source": source}))


@BOTH
def test_job_answers_and_reports_what_it_does(kind: Callable[..., Runner], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("abc")
    events: list[Event] = []
    answer = digest(kind(events.append), hf=str(tmp_path))
    # FIPS 180-2, appendix B.1: SHA-256 of "abc".
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert answer == Digests((SourceFile(f"{tmp_path}/config.json", 3, sha256),), ())
    assert events == [Phase("read source")]


@BOTH
def test_users_mistake_comes_back_as_the_error_that_was_raised(kind: Callable[..., Runner], tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        digest(kind(), onnx=f"{tmp_path}/m.onnx")
    assert (caught.value.what, caught.value.where) == ("no such file", f"{tmp_path}/m.onnx")


@BOTH
def test_our_own_mistake_comes_back_with_its_traceback(kind: Callable[..., Runner]) -> None:
    with pytest.raises(TrtkitError) as caught:
        kind().run(Job(DIGEST.function, dict[str, Any], Digests), {})
    assert caught.value.what.startswith("internal error: AttributeError(\"'dict' object has no attribute")
    assert caught.value.where == "job digest"
    assert caught.value.fix.startswith("report it with these lines:\n")
    assert "AttributeError: 'dict' object" in caught.value.fix


@BOTH
def test_exception_in_the_listener_ends_the_job_at_once(kind: Callable[..., Runner], tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()

    def cancel(_event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        digest(kind(cancel), hf=str(tmp_path))


@pytest.mark.children
def test_jobs_are_done_by_children_unless_a_test_says_otherwise() -> None:
    assert type(new_runner()) is ChildRunner
    with inline_jobs():
        assert type(new_runner()) is InlineRunner
    assert type(new_runner()) is ChildRunner


def test_the_child_that_builds_imports_nothing_heavy() -> None:
    own = (name.partition(":")[0] for name in (BUILD_STAGE.function, BUILD_STAGE.request_name))
    modules = ", ".join(["trtkit.jobs.worker", "trtkit.builder.parsed_stage", *own])
    check = f"import sys, {modules}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert not {"pydantic", "numpy", "onnx", "torch"} & set(ran.stdout.split())


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let children import the jobs of these tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.mark.usefixtures("toys")
def test_jobs_run_side_by_side_and_answer_in_order(tmp_path: Path) -> None:
    events: list[Event] = []
    requests = [Words(("a", "b"), tmp_path), Words(("b", "a"), tmp_path), Words(("c", "a"), tmp_path)]
    answers = ChildRunner(events.append).run_all(MEET, requests, 2, "words")
    assert [answer.words for answer in answers] == [("a",), ("b",), ("c",)]
    assert sorted(event.name for event in events if isinstance(event, Step)) == ["a", "b", "c"]
    assert [event.done for event in events if isinstance(event, Progress)] == [0, 1, 2, 3]


@pytest.mark.usefixtures("toys")
@BOTH
def test_one_at_a_time_is_one_after_another(kind: Callable[..., Runner], tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    requests = [Words(("b", "a"), tmp_path), Words(("c", "b"), tmp_path)]
    assert [answer.words for answer in kind().run_all(MEET, requests, 1, "words")] == [("b",), ("c",)]


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(
    ("then", "error", "message"),
    [("refuse", TooManyWordsError, "a refuses"), ("die", SourceError, "died with SIGABRT")],
)
def test_a_jobs_error_ends_the_others(then: str, error: type[TrtkitError], message: str, tmp_path: Path) -> None:
    """One of the others runs, and would for ever; another has not begun."""
    (tmp_path / "b").touch()
    requests = [Words(("a", "b", then), tmp_path), Words(("c", "nobody"), tmp_path), Words(("d", "a"), tmp_path)]
    with pytest.raises(error, match=message):
        ChildRunner().run_all(MEET, requests, 2, "words")
    running = (tmp_path / "c").read_text() if (tmp_path / "c").is_file() else ""
    assert not running or not Path(f"/proc/{running}").exists()


@pytest.mark.usefixtures("toys")
def test_an_interrupt_ends_all_jobs(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, Progress) and event.done == 1:
            raise KeyboardInterrupt

    (tmp_path / "a").touch()
    requests = [Words(("b", "a"), tmp_path), Words(("c", "nobody"), tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        ChildRunner(interrupt).run_all(MEET, requests, 2, "words")
    assert not (tmp_path / "c").is_file() or not Path(f"/proc/{(tmp_path / 'c').read_text()}").exists()
