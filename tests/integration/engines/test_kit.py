"""The GPU kit on the simulated runtime: every step, processes that die, what is written."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.gpu.__main__ import main
from tests.gpu.answers import Record, read, read_all, write
from tests.gpu.child import run_step
from tests.gpu.page import PAGE, RESULTS, page
from tests.gpu.place import SIMULATED, Place, move
from tests.gpu.run import ROOT, Call, run_steps
from tests.gpu.step import Step
from tests.gpu.steps import STEPS
from trtkit.backends import load_backend

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated

FAKE = """
import json, os, signal, sys, time
from tests.gpu.answers import Record, write
from pathlib import Path
name, folder = sys.argv[1], Path(sys.argv[2])
record = Record(name, "?", "simulated", "", {}, "", answers=({"what": "one answer"},))
write(folder, record)
if name == "hangs": time.sleep(600)
if name == "dies": os.kill(os.getpid(), signal.SIGSEGV)
write(folder, Record(**{**record.__dict__, "state": "done"}))
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and bundles, which steps share."""
    return tmp_path_factory.mktemp("kit")


LONG = {"detector-rt-detr-v2", "detector-detr3d", "pages"}  # in torch.export; two engines more


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
        for name, step in STEPS.items()
        if step.is_simulated and not step.simulates
    ],
)
def test_a_step_answers_on_the_simulated_runtime(name: str, gpu: Simulated, scratch: Path, tmp_path: Path) -> None:
    run_step(name, Place(SIMULATED, gpu.device, load_backend("tensorrt_rtx"), scratch, gpu), tmp_path)
    record = read(tmp_path / f"{name}.json")
    assert (record.state, record.error, record.place) == ("done", "", SIMULATED)
    assert record.answers
    assert record.refuted == ()


WITHOUT_TENSORRT = """
import sys
sys.modules["tensorrt_rtx"] = sys.modules["tensorrt"] = None
from tests.gpu.child import main
for step in sys.argv[1].split():
    main([step, *sys.argv[2:], "--simulated"])
"""


def test_the_runtime_is_asked_where_tensorrt_does_not_load(gpu: Simulated, tmp_path: Path) -> None:
    built, carried = tmp_path / "built", tmp_path / "carried"
    asked = ("simulated-load", "simulated-families", "simulated-streaming")
    move(built)
    for name in asked:
        run_step(name, Place(SIMULATED, gpu.device, load_backend("tensorrt_rtx"), built, gpu), tmp_path)
    built.rename(carried)  # and what the bundles name as their sources with it
    steps = (*asked, "simulated-pages", "machine", "contract")
    words = [" ".join(steps), str(tmp_path / "out"), str(carried)]
    subprocess.run([sys.executable, "-c", WITHOUT_TENSORRT, *words], check=True, cwd=ROOT, capture_output=True)
    records = {record.step: record for record in read_all(tmp_path / "out")}
    fault = "the `tensorrt_rtx` backend does not load: import of tensorrt_rtx halted; None in sys.modules"
    for name in asked:
        answers = (records[name].state, records[name].computed_by, records[name].refuted)
        assert answers == ("done", "simulated TensorRT, torch on CPU", ()), records[name]
        assert len(records[name].answers) == len(read(tmp_path / f"{name}.json").answers)
    assert (records["contract"].state, records["contract"].error, records["contract"].computed_by) == (
        "skipped",
        fault,
        "",
    )
    why = f"bundle `pages-tokens-copies of pages` was not built beforehand, and {fault}"
    assert (records["simulated-pages"].state, records["simulated-pages"].error) == ("skipped", why)
    assert [answer["seen"] for answer in records["machine"].refuted] == [fault]


def fake(name: str, estimate_s: int = 1) -> Step:
    return Step(name, "?", "", estimate_s)


def call(folder: Path, **changes: object) -> Call:
    fields: dict[str, object] = {"folder": folder, "scratch": folder, "place": SIMULATED, "minutes": 1}
    return Call(**{**fields, "child": (sys.executable, "-c", FAKE), **changes})  # type: ignore[arg-type]


def test_a_step_that_hangs_or_dies_costs_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "limit_s", property(lambda step: 5 if step.name == "hangs" else 120))
    records = [record for _, record in run_steps(map(fake, ("hangs", "dies", "works")), call(tmp_path))]
    assert [record and record.state for record in records] == ["timed out", "died", "done"]
    assert [record and record.error for record in records] == [
        "it was ended after 5 s, after one answer",
        "its process ended with signal SIGSEGV, after one answer",
        "",
    ]
    assert [len(record.answers) for record in read_all(tmp_path)] == [1, 1, 1]


def test_steps_that_have_a_file_are_not_run_again(tmp_path: Path) -> None:
    steps = [fake("works"), fake("later"), fake("long", 1000)]
    write(tmp_path, Record("works", "?", SIMULATED, "", {}, "", "done"))
    write(tmp_path, Record("later", "?", SIMULATED, "", {}, "", "cut off"))
    assert [step.name for step, record in run_steps(steps, call(tmp_path)) if record] == ["later"]
    again = call(tmp_path, again=frozenset({"works"}))
    assert [(step.name, record is None) for step, record in run_steps(steps, again)] == [
        ("works", False),
        ("long", True),
    ]
    other = [step.name for step, record in run_steps(steps, call(tmp_path, place="another GPU", minutes=0))]
    assert other == ["works", "later", "long"]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["kit", "--simulated", "--out", str(tmp_path / "out"), "--scratch", str(tmp_path), "--only", "load"]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 0
    assert "simulated: answers in" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "load.json").read_text())["place"] == SIMULATED


def test_simulated_answers_stay_out_of_the_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kit", "--simulated", "--out", str(RESULTS)])
    with pytest.raises(SystemExit):
        main()
    assert "simulated answers are not written to benchmarks/gpu" in capsys.readouterr().err
    assert all(record.place != SIMULATED for record in read_all(RESULTS))


def test_the_page_follows_from_the_files(tmp_path: Path) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read_all(RESULTS)), "run `make gpu-report`"
    assert "Nothing has run on a GPU yet" in page([])
    answers = ({"what": "rule 2: a | b", "holds": False, "seen": 0.123456}, {"what": "rule 3", "holds": True})
    record = Record(
        "contract", "Is it?", "A GPU", "python -m tests.gpu", {"torch": "2"}, "now", "done", 3.0, "", answers
    )
    write(tmp_path, record)
    text = page(read_all(tmp_path))
    assert "Nothing has run" not in text
    assert "| [contract](#contract) |" in text
    assert "| rule 2: a \\| b | False | 0.1235 |" in text
