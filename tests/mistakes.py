"""Writes docs/mistakes.md: common mistakes and trtkit's errors. `python -m tests.mistakes`."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from tests.support import models, tiny_chat
from tests.support.docs import DOCS
from trtkit.cli.main import main
from trtkit.jobs.runner import inline_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = DOCS / "mistakes.md"
_HEAD = """\
# Common mistakes

trtkit's errors for {count} mistakes that newcomers make. `python -m tests.mistakes` makes each of them and writes this
page; a test keeps it current. [Troubleshooting](troubleshooting.md) has the errors that need more explanation.
"""
# By subject: the mistake, and its command.
MISTAKES: dict[str, dict[str, str]] = {
    "Commands and options": {
        "A typo in a command": "trtkit biuld classifier.onnx",
        "A typo in an option": "trtkit build classifier.onnx --precison fp16",
        "No model": "trtkit build",
        "A precision that is a quantization method": "trtkit build classifier.onnx --precision int8",
        "A GPU generation that does not exist": "trtkit build classifier.onnx --target sm98",
        "A report in a folder that does not exist": "trtkit verify bundles/classifier --html reports/verify.html",
    },
    "Models": {
        "A file that does not exist": "trtkit build clasifier.onnx",
        "A misspelled config name": "trtkit build efficientnet",
        "A hub model, without access to the hub": "trtkit build Qwen/Qwen3-0.6B --yes",
        "A web page saved as a model": "trtkit build page.onnx",
        "A download that was cut off": "trtkit build half.onnx",
        "Operators that TensorRT lacks": "trtkit build unsupported.onnx",
        "Weights without their config": "trtkit build weights",
        "An unsupported model family": "trtkit build unknown",
    },
    "Configs": {
        "A typo in a key": "trtkit build typo.yaml",
        "A value of the wrong type": "trtkit build classifier.onnx --set build.workspace_gib=much",
        "A precision that does not exist": "trtkit build classifier.onnx --set precision=fp17",
        "Broken YAML": "trtkit build broken.yaml",
        "A profile of an input that the model does not have": "trtkit build classifier.onnx --shapes image:1x3x16x16",
        "A profile of a model with fixed sizes": "trtkit build fixed.onnx --shapes images:4x3x16x16",
        "Sequences longer than the model was trained for": "trtkit build llama-tiny --set llm.max_sequence_length=4096",
        "Class names in a file that is missing": "trtkit build labelled.yaml",
    },
    "Running": {
        "A bundle that is not built yet": "trtkit verify bundles/resnet50",
        "A bundle, nearly": "trtkit verify bundles/clasifier",
        "No picture": "trtkit run bundles/pictures",
        "Pictures for a model without `preprocess:`": "trtkit run bundles/classifier street.jpg",
        "A picture that does not exist": "trtkit run bundles/pictures steet.jpg",
        "A file that is not a picture": "trtkit run bundles/pictures notes.jpg",
        "Arrays of another size": "trtkit run bundles/classifier small.npz",
        "An engine without a GPU": "trtkit run bundles/pictures street.jpg --runtime tensorrt",
        "Text generation with a classifier": 'trtkit generate bundles/classifier "Hello"',
        "A prompt longer than a slot": "trtkit generate bundles/llama-tiny --prompts long.txt",
        "A LoRA adapter for an engine without any": 'trtkit generate bundles/llama-tiny "Hello" --lora fr=adapters/fr',
        "A bundle with a changed file": "trtkit verify bundles/damaged",
    },
    "Quantizing and planning": {
        "A method that does not exist": "trtkit quantize classifier.onnx --method int5",
        "int8 without data to calibrate on": "trtkit quantize classifier.onnx --method int8",
        "A GPU that does not exist": "trtkit plan llama-3.1-8b --gpu h1000",
        "A misspelled model name": "trtkit plan llama3.1-8b --gpu h100",
    },
    "Serving": {
        "A repository without models": "trtkit serve pictures",
        "A port that another program uses": "trtkit serve bundles/llama-tiny --http-port 8000",
        "A server that is not running": "trtkit check 127.0.0.1:8001 --bundle bundles/classifier",
        "A benchmark of a server that is not running": "trtkit bench bundles/classifier --unverified --url http://127.0.0.1:8001",
        "An option of Triton for a language model": "trtkit serve bundles/llama-tiny --grpc-port 9001",
        "A typo in an option of deploy": "trtkit deploy bundles/classifier --repository models --set instance=2",
    },
}
_ERROR = re.compile(r"^[eE]rror: ", re.MULTILINE)
_CONFIG = "source: {onnx: classifier.onnx}\npreprocess: {}\n"
_TEXTS = {
    "page.onnx": "<!DOCTYPE html><html>Sign in to download</html>\n",
    "notes.jpg": "not a picture\n",
    "typo.yaml": "source: {onnx: classifier.onnx}\nprofles: [{images: [1, 1, 4]}]\n",
    "broken.yaml": "source: {onnx: classifier.onnx\n",
    "pictures.yaml": f"{_CONFIG}precision: fp32\ntask: {{kind: classification}}\n",
    "labelled.yaml": f"{_CONFIG}task: {{kind: classification, labels: names.txt}}\n",
    "unknown/config.json": '{"model_type": "brain", "architectures": ["BrainForCausalLM"]}',
    "weights/model.safetensors": "",
    "pictures/street.jpg": "",
    "long.txt": "The quick brown fox jumps over the lazy dog. " * 9 + "\n",
}


def prepare(folder: Path) -> None:
    """Write the files that the mistakes use, and build their bundles."""
    for name, text in _TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    models.save(models.classifier(), folder / "classifier.onnx")
    models.save(models.classifier(batch=1), folder / "fixed.onnx")
    models.save(models.unsupported(), folder / "unsupported.onnx")
    (folder / "half.onnx").write_bytes((folder / "classifier.onnx").read_bytes()[:500])
    Image.new("RGB", (16, 16), "white").save(folder / "street.jpg")
    np.savez(folder / "small.npz", images=np.zeros((1, 3, 8, 8), np.float32))
    tiny_chat.save_model(folder / "llama-tiny")
    small = "--set llm.max_sequence_length=96 --set llm.max_prefill_length=32"
    for words in ("classifier.onnx --precision fp32", "pictures.yaml", f"llama-tiny {small}"):
        code, shown = run(f"trtkit build {words}")
        assert code == 0, shown
    shutil.copytree(folder / "bundles/classifier", folder / "bundles/damaged")
    with next((folder / "bundles/damaged").rglob("*.plan")).open("ab") as changed:
        changed.write(b" ")


def run(command: str) -> tuple[int, str]:
    """Run a command line in this process. Returns its exit code and output."""
    shown, code = io.StringIO(), 0
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            main(shlex.split(command)[1:])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, shown.getvalue()


def make(command: str, folder: Path) -> str:
    """Make a mistake in `folder`, the current one. Returns the command, its error, and its exit code."""
    with socket.socket() as taken, socket.socket() as free:
        for each in (taken, free):
            each.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"8000": taken.getsockname()[1], "8001": free.getsockname()[1]}
        words = re.sub(r"\b800[01]\b", lambda port: str(ports[port.group()]), command)
        code, shown = run(words)
    start = _ERROR.search(shown)
    assert code in (1, 2), (command, code, shown)
    assert start is not None, (command, shown)
    message = shown[start.start() :].replace(f"{folder}/", "").rstrip()
    for shown_port, port in ports.items():
        message = message.replace(str(port), shown_port)
    return f"$ {command}\n{message}\n(exit code {code})"


@contextlib.contextmanager
def workshop(folder: Path) -> Iterator[None]:
    """Change to a folder with the mistakes' files, without hub access, colours or child processes."""
    changes = {"TRTKIT_CACHE_DIR": str(folder / ".cache"), "HF_HUB_CACHE": str(folder / ".hub"), "NO_COLOR": "1"}
    changes |= {"HF_ENDPOINT": "http://127.0.0.1:9", "COLUMNS": "100"}
    with pytest.MonkeyPatch.context() as patch, inline_jobs():
        for name, value in changes.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        prepare(folder)
        yield


def page(folder: Path) -> str:
    """Make all mistakes in an empty folder. Returns the page."""
    parts = [_HEAD.format(count=sum(map(len, MISTAKES.values())))]
    with workshop(folder):
        for title, mistakes in MISTAKES.items():
            parts.append(f"## {title}\n")
            for name, command in mistakes.items():
                parts.append(f"### {name}\n\n```console\n{make(command, folder)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(page(Path(scratch).resolve()), encoding="utf-8")
