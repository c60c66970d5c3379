"""What torch.export cannot trace is exported another way if that computes the same; what was given up is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import pytest
import torch

from trtkit.config.schema import ModuleInput, TorchSource
from trtkit.errors import SourceError
from trtkit.sources.torch import attempts

if TYPE_CHECKING:
    from pathlib import Path

torch.set_num_threads(1)


class Selected(torch.nn.Module):
    """As many rows as there are positive ones: a size that depends on data, which torch.export does not guess."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x[x[:, 0] > 0.5]
        return kept * 2 if kept.shape[0] > 0 else kept


class Frozen(torch.nn.Module):
    """Python reads a size: a trace has it as a constant, and torch.export fixes the dimension without a word."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = int(x.shape[0])
        return x * float(np.sqrt(rows)) + float(x.sum() > 1e9)


class WideAttention(torch.nn.Module):
    """Attention over five axes, as Hiera's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, scale=0.5)


def source(*shape: int | str) -> TorchSource:
    return TorchSource(factory="m:make", inputs={"x": ModuleInput(shape=shape)}, outputs=("y",))


def run(path: Path, x: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


def test_what_torch_export_takes_gives_nothing_up(tmp_path: Path) -> None:
    detail = attempts.export(torch.nn.Linear(4, 3), source("batch", 4), {}, tmp_path / "m.onnx")
    assert detail == "torch.export to opset 20"


def test_a_size_that_depends_on_data_is_exported_by_script(tmp_path: Path) -> None:
    detail = attempts.export(Selected(), source("rows", 4), {"rows": 6}, tmp_path / "m.onnx")
    assert detail.startswith("TorchScript to opset 20")
    assert "; torch.export alone: Could not guard on data-dependent expression" in detail
    x = torch.rand(9, 4)
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", x), Selected()(x).numpy())


def test_a_trace_that_would_be_wrong_at_other_sizes_is_not_kept(tmp_path: Path) -> None:
    """The trace holds the root of the traced size. Where no profile forbids it, the batch is fixed."""
    with pytest.raises(SourceError) as error:
        attempts.export(Frozen(), source("batch", 4), {"batch": 4}, tmp_path / "m.onnx")
    assert error.value.what == "torch.export cannot trace the module: it fixes `batch`, axis 0 of `x`, at 4"
    detail = attempts.export(Frozen(), source("batch", 4), {}, tmp_path / "m.onnx")
    assert detail.startswith("torch.export to opset 20, with a batch of 1; torch.export alone: it fixes `batch`")
    x = torch.rand(1, 4)
    np.testing.assert_allclose(run(tmp_path / "m.onnx", x), Frozen()(x).numpy())


def test_attention_over_five_axes_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(2, 3, 4, 5, 8)
    for by_script in (True, False):
        if not by_script:
            monkeypatch.setattr(attempts, "_scripted", attempts._exported)
        detail = attempts.export(WideAttention(), source("batch", 3, 4, 5, 8), {}, tmp_path / "m.onnx")
        assert detail.startswith("TorchScript" if by_script else "torch.export to opset 20, attention written out")
        np.testing.assert_allclose(run(tmp_path / "m.onnx", x), WideAttention()(x).numpy(), rtol=1e-5, atol=1e-6)


def test_a_long_reason_is_cut() -> None:
    assert len(attempts._reason(ValueError("x" * 4000))) < 310
