"""Tables in 80 columns: no line is longer; long names and numbers are wrapped, not truncated."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from tests.support import tiny_chat
from tests.support.models import classifier, save
from trtkit.benchmarking.report import LlmReport, read_report
from trtkit.cli.tables import rendered
from trtkit.planning.gpus import planned_gpus
from trtkit.report.benchmark_tables import load_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

    Run = Callable[..., Ran]

ROOT = Path(__file__).parents[2]
LONG = "backbone/stages.11/blocks.23/attention/self/query_key_value_projection/with_bias"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network whose names are long, and the bundle of a language model."""
    folder = tmp_path_factory.mktemp("wide")
    model = classifier()
    for index, node in enumerate(model.graph.node):
        node.name = f"{LONG}/{index}"
    save(model, folder / "wide.onnx")
    (folder / "wide.yaml").write_text("source: {onnx: wide.onnx}\nprofiles: [{batch: [1, 2, 4]}]\n")
    tiny_chat.build(folder)
    return folder


@pytest.fixture
def printed(trtkit: Run, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., str]:
    """Run a command in the folder; return what it prints, after a check of its width."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(folder)

    def run(line: str) -> str:
        ran = trtkit(*line.split())
        assert ran.code == 0
        assert [row for row in ran.out.splitlines() if len(row) > 80] == []
        assert "\N{HORIZONTAL ELLIPSIS}" not in ran.out
        return ran.out

    return run


@pytest.mark.parametrize(
    "line",
    [
        "plan llama-3.1-8b --price 2000 --concurrency 64",
        "plan opt-175b --price 2000 --gpu h200,b200",
        "plan bundle --price 2000",
        "plan wide.yaml --price 2000 --concurrency 4",
    ],
)
def test_plans_with_prices(line: str, printed: Callable[..., str]) -> None:
    """Prices make the widest tables; of each GPU there is one row, with no figure broken."""
    text = printed(f"{line} -q")
    table = text.partition("best case")[2].partition("\n\n")[0].splitlines()
    wanted = line.rsplit(maxsplit=1)[-1].split(",") if "--gpu" in line else [gpu.key for gpu in planned_gpus()]
    assert [row.split()[0] for row in table[3:]] == wanted
    assert len({len(row.split()) for row in table[3:]}) == 1


def test_a_network_with_long_names(printed: Callable[..., str]) -> None:
    for line in ("inspect wide.yaml --layers", "verify wide.yaml --layers"):
        text = printed(f"{line} -q")
        column = "".join(row[:36].strip() for row in text.splitlines())
        assert f"{LONG}/0" in column or LONG[:20] in text
    printed("build wide.yaml -q")


def test_a_language_model(printed: Callable[..., str]) -> None:
    assert "input_ids int32 [?, 1]" in printed("inspect bundle --layers")
    printed("verify bundle --no-corners -q")
    printed(f"eval bundle --perplexity {ROOT}/LICENSE --windows 1 -q")


def test_figures_of_a_network(printed: Callable[..., str]) -> None:
    words = "--unverified --batch 4 --compare onnxruntime --min-runs 5 --min-seconds 0.01 -q"
    text = printed(f"bench wide.yaml {words} --save before.json")
    assert "not of an engine" in text
    assert "trtkit" in printed("bench diff before.json before.json")


def test_figures_of_a_language_model(printed: Callable[..., str]) -> None:
    """Those of a slow machine too, by a report whose times are a thousand times as long."""
    load = "--requests 2 --concurrency 2 --input-len 8 --output-len 4 --goodput ttft:500"
    printed(f"bench bundle --unverified {load} --compare transformers --rounds 1 --save llm.json -q")
    printed("bench diff llm.json llm.json")
    data = json.loads(Path("llm.json").read_text())
    for result in data["cases"][0]["results"]:
        for metric in ("time_to_first_token", "inter_token_latency", "request_latency"):
            result["metrics"][metric]["p50"], result["metrics"][metric]["p99"] = 123456.7, 234567.8
    Path("slow.json").write_text(json.dumps(data))
    report = read_report("slow.json")
    assert isinstance(report, LlmReport)
    case = report.cases[0]
    out = Console(width=80, file=io.StringIO())
    out.print(rendered(load_table(case)))
    text = out.file.getvalue()
    assert text.count("123457/234568") == 3 * len(case.results)
    assert max(map(len, text.splitlines())) <= 80


def test_a_path_that_is_there_is_never_broken_where_no_width_is_asked_for(
    trtkit: Run, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert trtkit("build", "wide.yaml", "-q").code == 0
    deep = folder / ("a_folder_with_a_long_name_" * 4)
    deep.symlink_to(folder)
    bundle = f"{deep}/bundles/wide"
    ran = trtkit("bench", bundle, "--unverified", "--batch", 1, "--min-runs", 5, "--min-seconds", 0, "-q")
    assert f"\nbundle   {bundle},\n" in ran.out
    assert f"`trtkit plan {bundle}`" in ran.out
    wide = [row for row in ran.out.splitlines() if len(row) > 80]
    assert wide
    assert all(bundle in row for row in wide)


@pytest.mark.parametrize(
    "line", ["doctor", "plugins list", "plugins list deform_conv", "plugins check pillar_scatter -q"]
)
def test_the_rest(line: str, printed: Callable[..., str]) -> None:
    printed(line)


def test_the_table_of_gpus(trtkit: Run) -> None:
    """Addresses of the sources behind it are left whole."""
    table, _, sources = trtkit("plan", "--list-gpus").out.partition("\n\n")
    assert max(map(len, table.splitlines())) <= 80
    assert "\n  https://" in sources
