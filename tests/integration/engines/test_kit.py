"""The GPU kit on the simulated runtime: every step, processes that die, files that are written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.gpu import pack, unpack
from tests.gpu.__main__ import main
from tests.gpu.answers import Record, read, read_all, write
from tests.gpu.child import run_step
from tests.gpu.models import classifier_config
from tests.gpu.page import PAGE, RESULTS, page
from tests.gpu.place import SIMULATED, Place, move
from tests.gpu.rule import Machine, why_no_kernels, why_skipped
from tests.gpu.run import ROOT, Call, run_steps
from tests.gpu.step import Step
from tests.gpu.steps import STEPS, kernels
from trtkit.backends import load_backend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gpu.step import Answer
    from tests.simulated_tensorrt import Simulated
    from trtkit.network.custom_op import CustomOp

pytestmark = pytest.mark.usefixtures("one_export")
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


# In torch.export; engines more. Each has a shorter step beside it that asks the same of another model or of less.
LONG = {"detector-rt-detr-v2", "detector-detr3d", "detector-ppocr-rec", "detector-ppocr-cls", "pages", "serving"}


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


def test_the_runtime_is_asked_where_tensorrt_does_not_load(gpu: Simulated, scratch: Path, tmp_path: Path) -> None:
    built, carried = tmp_path / "built", tmp_path / "carried"
    asked = ("simulated-load", "simulated-families")
    move(scratch)
    shutil.copytree(scratch, built)  # what other steps have built
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


RTX_ONLY = (
    "skipped: `tensorrt_rtx` runs on GPUs of compute capability 7.5, 8.0 (untested), 8.6, 8.9 and 12.x; "
    "9.0 needs full TensorRT, which the kit does not carry"
)
WITHOUT_ENGINES = {
    "machine": "torch on CUDA (a GPU of 9.0)",
    "load": "TensorRT-RTX on a GPU of 9.0",  # itself says that it refuses
    "kernels": "Triton, torch on CUDA (a GPU of 9.0)",
    "sampling": "Triton, torch on CUDA (a GPU of 9.0)",
    "rivals": "torch on CUDA (a GPU of 9.0)",
}


def test_what_an_h100_an_l4_and_an_rtx_5090_can_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = {}
    for version in ("9.0", "8.9", "12.0", "8.0"):
        monkeypatch.setattr(sys, "argv", ["kit", "--what-if", version])
        assert main() == 0
        plans[version] = capsys.readouterr().out.splitlines()
    assert plans["8.0"].pop(0).startswith("8.0 is untested")
    rows = {version: dict(line.split(maxsplit=1) for line in lines) for version, lines in plans.items()}
    simulated = [name for name in STEPS if name.startswith("simulated-")]
    assert list(rows["9.0"])[: len(simulated) + 5] == ["machine", "load", *simulated, "kernels", "sampling", "rivals"]
    assert {name: rows["9.0"][name] for name in WITHOUT_ENGINES} == WITHOUT_ENGINES
    assert {rows["9.0"][name] for name in simulated} == {"simulated TensorRT, torch on CUDA (a GPU of 9.0)"}
    assert {by for name, by in rows["9.0"].items() if name not in {*simulated, *WITHOUT_ENGINES}} == {RTX_ONLY}
    for version in ("8.9", "12.0", "8.0"):
        engines = {by for name, by in rows[version].items() if STEPS[name].needs == "engines" and name not in simulated}
        assert engines == {f"TensorRT-RTX on a GPU of {version}"}
    monkeypatch.setattr(sys, "argv", ["kit", "--what-if", "hopper"])
    with pytest.raises(SystemExit):
        main()
    assert "--what-if hopper: expected a compute capability such as 9.0" in capsys.readouterr().err


def test_tensorrt_itself_refuses_an_h100(gpu: Simulated, scratch: Path) -> None:
    gpu.device.compute_capability = 90
    place = Place("H100", gpu.device, load_backend("tensorrt_rtx"), scratch, None, Machine("H100", 90))
    gpu.plans.add(place.bundle("classifier-fp32", lambda: classifier_config(scratch)))
    answer = next(STEPS["load"].run(place))
    assert (answer["holds"], answer["seen"]) == (
        True,
        "The engine cannot run on this GPU, which has compute capability 9.0",
    )


def test_a_kernel_that_fails_ends_no_other(gpu: Simulated, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(_place: Place, op: CustomOp, _rate: float) -> Iterator[Answer]:
        asked.append(op.name)
        if len(asked) == 1:
            raise RuntimeError("no kernel image")
        yield {"what": op.name}

    monkeypatch.setattr(kernels, "_asked", ask)
    monkeypatch.setattr(kernels, "copy_bytes_per_s", lambda _place: 1.0)
    answers = list(
        kernels.ask(Place("a GPU", gpu.device, load_backend("tensorrt_rtx"), scratch, None, Machine("a GPU", 90)))
    )
    assert len(answers) == len(asked) > 1
    assert answers[0] == {"what": asked[0], "holds": False, "error": "RuntimeError: no kernel image"}


@pytest.mark.parametrize("step", ["kernels", "sampling"])
def test_kernels_are_not_asked_without_a_compiler(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_kernels() == ""
    monkeypatch.setattr("shutil.which", lambda _name: None)
    fault = "Triton needs a C compiler, and there is neither gcc nor clang: install one, or set CC"
    assert why_skipped(STEPS[step], Machine("a GPU", 89, "", why_no_kernels())) == fault


def test_the_kit_says_which_python_its_packages_are_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(map(int, pack.PYTHON.split("."))) == unpack.PYTHON
    monkeypatch.setattr(sys, "version_info", (3, 13, 1))
    monkeypatch.setattr(sys, "argv", ["unpack.py", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"for Python 3\.12; this is 3\.13: run it with python3\.12"):
        unpack.main()


def test_pieces_of_the_kit_can_be_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pack.PIECE_BYTES + 2**20 <= 48 * 2**20
    monkeypatch.setattr(pack, "OUT", tmp_path)
    monkeypatch.setattr(pack, "PIECE_BYTES", 1000)
    pieces = pack.write_pieces(bytes(2500))
    assert [(piece / f"part{index}").stat().st_size for index, piece in enumerate(pieces, 1)] == [834, 834, 832]
