"""The script that draws a network as a graph, run by Node on a page that has only what the script uses."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
KERNELS = [{"name": "stem_kernel", "kind": "correlation"}, {"name": "__myl_Move", "kind": "kgen"}]
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")


def node(name: str, place: tuple[int, int], kernels: list[int], **values: Any) -> dict[str, Any]:
    own = {"type": "activation", "precision": "fp16", "output": "fp16 [8]", "bytes": 1000, "flops": 0}
    x, y = place
    return {"name": name, "x": x, "y": y, "kernels": kernels, **own, "error": None, "ms": None, **values}


NODES = [
    node("stem/conv", (0, 0), [0], type="convolution", bytes=100_000, flops=5_000_000, error=1e-3, ms=2.0),
    node("stem/relu", (0, 1), [0], error=1e-6),
    node("head/copy", (1, 2), [1], precision="fp32"),
    node("head/view", (1, 3), []),
]


@pytest.fixture
def shown(tmp_path: Path) -> Any:
    """Return what a page shows after deeds such as `search=relu`."""
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps({"nodes": NODES, "edges": [[0, 1], [1, 2], [2, 3]], "kernels": KERNELS}))

    def run(*deeds: str) -> Any:
        code = ROOT / "trtkit/report/graph.js"
        words = ["node", str(Path(__file__).with_name("graph_page.js")), str(code), str(graph), *deeds]
        return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    return run


def test_layers_of_one_kernel_have_one_color(shown: Any) -> None:
    conv, relu, copy, view = (box["color"] for box in shown()["boxes"])
    assert conv == relu
    assert len({conv, copy, view}) == 3
    assert view == "#e6e8eb"


@pytest.mark.parametrize(("key", "equal"), [("type", [1, 2, 3]), ("precision", [0, 1, 3]), ("error", [2, 3])])
def test_other_colors_are_those_of_a_value(key: str, equal: list[int], shown: Any) -> None:
    colors = [box["color"] for box in shown(f"color={key}")["boxes"]]
    assert len({colors[index] for index in equal}) == 1
    assert len(set(colors)) == 5 - len(equal)


def test_searching_dims_the_rest_and_tells_of_the_first(shown: Any) -> None:
    by_name, by_kernel, by_type = shown("search=relu"), shown("search=myl_move"), shown("search=convolution")
    assert by_name["found"] == by_kernel["found"] == by_type["found"] == "1 of 4 layers"
    assert [box["alpha"] for box in by_name["boxes"]] == [0.2, 1, 0.2, 0.2]
    assert by_name["details"].splitlines() == [
        "stem/relu (activation)",
        "output fp16 [8]",
        "1,000 bytes, 0 operations",
        "kernel 1 of 2: stem_kernel (correlation)",
        "relative RMS error 1.00e-6",
    ]
    assert shown("search=nothing")["found"] == "0 of 4 layers"
    assert shown("search=relu", "search=")["found"] == ""


def test_a_click_tells_of_a_layer_where_it_is_drawn_after_moving_and_zooming(shown: Any) -> None:
    moves = ("drag=40,30", "scroll=-200")
    zoom, _, _, _, left, top = shown(*moves)["view"]
    assert zoom > 1
    x, y = NODES[3]["x"] * 150 + 5, NODES[3]["y"] * 40 + 5
    click = f"click={left + x * zoom},{top + y * zoom}"
    assert shown(*moves, click)["details"].splitlines()[0] == "head/view (activation)"
    assert "in no kernel" in shown(*moves, click)["details"]
    assert shown(*moves, click, "click=1,399")["details"] == ""


def test_scrolling_keeps_the_point_under_the_pointer_and_is_limited(shown: Any) -> None:
    before, after = shown()["view"], shown("scroll=-100")["view"]
    assert (300 - before[4]) / before[0] == pytest.approx((300 - after[4]) / after[0])
    assert shown("scroll=-9000")["view"][0] == 4
    assert shown("scroll=9000")["view"][0] == 0.02
