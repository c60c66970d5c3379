"""Bundles of a tiny chat model and of a matrix product. torch is imported only where it is used."""

from __future__ import annotations

import hashlib
import os
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trtkit.files import replace_file
from trtkit.jobs.runner import inline_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from tests.conftest import Ran
    from trtkit import LLM
    from trtkit.config.schema import TorchSource
    from trtkit.runtime.text import Tokenizer


@pytest.fixture
def bundle(workspace: Path, trtkit: Callable[..., Ran]) -> Path:
    """The bundle `b` of an ONNX file with a single matrix product, built in this process for every test."""
    from tests.support import models

    models.save(models.matmul(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    with inline_jobs():
        assert trtkit("build", "m.yaml", "-o", "b").code == 0
    return workspace / "b"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny chat model, saved as transformers does, and its bundle."""
    from tests.support.tiny_chat import build

    path = tmp_path_factory.mktemp("tiny")
    build(path)
    return path


CACHES = [
    "linear",
    "paged",
    pytest.param("in-place", marks=pytest.mark.slow),
    pytest.param("packed", marks=pytest.mark.slow),
    "packed, paged",
]


@pytest.fixture(scope="module", params=CACHES)
def caches(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run tests of generation with full-length slots, with too few pages for all slots, and in packed calls."""
    from tests.support.generation import FEW_PAGES, caches_of

    pages, is_packed = FEW_PAGES, request.param.startswith("packed")
    if request.param in ("linear", "packed"):
        pages = None
    with caches_of(pages, in_place=request.param == "in-place", is_packed=is_packed):
        yield request.param


@pytest.fixture(scope="session")
def classifier_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny image classifier."""
    from tests.support.deployments import classifier

    return classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="session")
def llm_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny Llama with logits of all tokens, next to its checkpoint."""
    from tests.support import tiny_llm

    return tiny_llm.build(tmp_path_factory.mktemp("llm"), "tiny")


@pytest.fixture(scope="session")
def llm(llm_bundle: Path) -> Iterator[LLM]:
    """The model of `llm_bundle` on the reference executor."""
    from trtkit import LLM

    with LLM(llm_bundle, runtime="reference") as opened:
        yield opened


@pytest.fixture
def tiny_bundle(tiny_folder: Path) -> Path:
    return tiny_folder / "bundle"


@pytest.fixture
def tiny_tokenizer(tiny_folder: Path) -> Tokenizer:
    from trtkit.runtime.text import open_tokenizer

    found = open_tokenizer(tiny_folder / "bundle/model")
    assert found is not None
    return found


@pytest.fixture
def greedy(tiny_folder: Path) -> Callable[[list[int], int], list[int]]:
    """transformers' greedy answer, its end token included."""
    import torch
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(tiny_folder / "model", dtype=torch.float32)

    def generate(ids: list[int], count: int) -> list[int]:
        every = {"attention_mask": torch.ones(1, len(ids)), "pad_token_id": 0}  # 0 is also a normal token
        found = hf.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, **every)
        return [int(token) for token in found[0, len(ids) :]]

    return generate


@pytest.fixture(scope="module")
def one_export() -> Iterator[None]:
    """Export equal modules once for all processes: compositions and precisions differ only after the export.

    torch parses the sources of all its translations at each export, a fifth of the time; here, once per process.
    """
    from torch.onnx._internal.exporter import _registration

    from trtkit.sources.torch import attempts

    export, folder = attempts.export, Path(os.environ["TRTKIT_CACHE_DIR"]).with_name("exports")

    def shared(module: torch.nn.Module, source: TorchSource, sizes: Mapping[str, int], path: Path) -> str:
        kept = folder / f"{_digest(module)}-{hashlib.sha256(f'{source}{sizes}'.encode()).hexdigest()}.onnx"
        detail = kept.with_suffix(".txt")
        if not detail.exists():
            folder.mkdir(exist_ok=True)
            words = export(module, source, sizes, path)
            replace_file(kept, path.read_bytes())
            replace_file(detail, words.encode())
        path.write_bytes(kept.read_bytes())
        return detail.read_text()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "export", shared)
        translations = _registration.onnxscript_apis.get_torchlib_ops
        patch.setattr(_registration.onnxscript_apis, "get_torchlib_ops", partial(_once, translations))
        yield


_once = cache(lambda function: function())


def _digest(module: torch.nn.Module) -> str:
    """Return a digest of a module's parts, their settings, and its tensors: equal for equal computations."""
    digest = hashlib.sha256()
    for name, part in module.named_modules():
        settings = {key: value for key, value in vars(part).items() if not key.startswith("_")}
        digest.update(f"{name} {type(part)} {settings}".encode())
    for tensors in (module.named_parameters(), module.named_buffers()):
        for name, tensor in tensors:
            digest.update(name.encode() + tensor.detach().numpy().tobytes())
    return digest.hexdigest()
