"""Five newcomers' first ten minutes, following the README and docs pages: who sees pictures, who generates text, who
serves, who does research, and who has five minutes. The researcher's guide runs in `test_docs_pages`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from onnx.tools import update_model_dims
from PIL import Image

from tests.support import models
from tests.support.docs import DOCS, ROOT, blocks, run_script
from tests.support.hub_server import hub_server, use_hub
from tests.support.tiny_chat import save_smollm2_words
from trtkit.deployment.process import free_ports

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = [block.text for block in blocks(ROOT / "README.md", "bash")]


def block_with(words: str) -> str:
    """Return the README's block with these words."""
    (block,) = [block for block in COMMANDS if words in block]
    return block


@pytest.mark.children
@pytest.mark.parametrize("is_dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_onnx_file_of_a_detector_to_boxes_on_a_picture(is_dynamic: bool, tmp_path: Path) -> None:
    model = models.exported_by_ultralytics(models.detector(96, is_dynamic=is_dynamic), "[96, 96]")
    if not is_dynamic:  # Ultralytics' default: the batch is fixed too
        model = update_model_dims.update_inputs_outputs_dims(model, {"images": [1, 3, 96, 96]}, {"rows": [1, 6, 50]})
    models.save(model, tmp_path / "yolo11n.onnx")
    Image.new("RGB", (320, 320), "white").save(tmp_path / "street.jpg")
    printed = run_script(block_with("yolo11n.onnx"), tmp_path)
    assert re.search(r"^street\.jpg: 1 box: light 1\.00$", printed, re.MULTILINE)
    with Image.open(tmp_path / "drawn" / "street.jpg") as drawn:
        assert drawn.size == (320, 320)


@pytest.mark.children
def test_the_name_of_a_llama_to_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "meta-llama/Llama-3.2-1B-Instruct"
    block = block_with(f"trtkit build {name}")
    with hub_server() as hub:
        hub.add(name, save_smollm2_words(tmp_path / "published"))
        use_hub(hub, tmp_path / "hub", monkeypatch)
        # A script has no terminal on which `build` could ask.
        printed = run_script(f"trtkit fetch {name}\n{block}echo; trtkit list bundles --json", tmp_path)
    answer, _, listed = printed.rpartition("\n{")
    assert answer.partition(": ready\n")[2].strip()
    assert "Llama-3.2-1B-Instruct" in json.loads("{" + listed)["bundles"][0]["path"]


@pytest.mark.slow
def test_detr3d_with_its_picture(tmp_path: Path) -> None:
    printed = run_script(block_with("birds_eye.py"), tmp_path)
    assert re.search(r"^PASS: detr3d", printed, re.MULTILINE)
    with Image.open(tmp_path / "birds_eye.png") as drawn:
        assert min(drawn.size) > 300


@pytest.mark.children
def test_what_serving_would_cost(tmp_path: Path) -> None:
    printed = run_script(block_with("--price l4="), tmp_path)
    assert re.search(r"^\s*h100", printed, re.MULTILINE)
    assert "$/M" in printed


@pytest.mark.slow
def test_a_server_for_the_openai_client_then_manifests_for_a_cluster(tmp_path: Path) -> None:
    """The platform engineer: README's `serve` and its program, with a key, then the command for Kubernetes."""
    (port,) = free_ports(1)
    (program,) = [block.text for block in blocks(ROOT / "README.md", "python") if "OpenAI" in block.text]
    (tmp_path / "client.py").write_text(program.replace("8000", str(port)).replace('"none"', '"secret"'))
    save_smollm2_words(tmp_path / "published")
    serve = block_with("trtkit serve bundles/Llama").strip()
    (deploy,) = [block.text for block in blocks(DOCS / "openai-production.md", "bash") if "--kubernetes" in block.text]
    name = "Llama-3.2-1B-Instruct"
    script = f"""
        trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT
        trtkit build published -q -o bundles/{name}
        TRTKIT_API_KEY=secret {serve} --quiet --log-format json --http-port {port} > served 2> log &
        until grep -qs 'Ctrl-C stops it' served; do kill -0 $!; sleep 0.5; done
        python client.py
        curl -s -o /dev/null -w '%{{http_code}}\\n' http://127.0.0.1:{port}/v1/models
        {deploy.replace("bundles/llama", f"bundles/{name}")}
    """
    printed = run_script(script, tmp_path).splitlines()
    assert "401" in printed
    assert printed.index("401") > 0  # after an answer, of a model that knows nothing
    assert (tmp_path / "manifests" / "deployment.yaml").is_file()
    for line in (tmp_path / "log").read_text().splitlines():
        assert json.loads(line).keys() == {"time", "level", "process", "message"}
