"""The custom decoder example: its README's command, and its numbers against plain torch."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812

from tests.integration.test_examples import ROOT, blocks, run_readme
from trtkit.reference import Executor, read_layers

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "examples" / "custom-decoder"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("custom_decoder", FOLDER / "decoder.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain_logits(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Compute the example's model without a cache: ids [B, S] -> [B, S, V]."""
    layers, ends = module.random_weights()
    table, head = (torch.from_numpy(array) for array in ends)
    x, size = table[ids], ids.shape[1]
    causal = torch.ones(size, size, dtype=torch.bool).tril()
    for layer in layers:
        w = {name: torch.from_numpy(array) for name, array in layer.items()}
        y = F.rms_norm(x, (module.D,), w["norm"], 1e-6)
        q, k, v = ((y @ w[name].T).unflatten(-1, (-1, module.H)).transpose(1, 2) for name in "qkv")
        k, v = (part.repeat_interleave(module.N // module.K, 1) for part in (k, v))
        scores = (q @ k.mT * module.H**-0.5).masked_fill(~causal, -torch.inf)
        sinks = w["sinks"].reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        attended = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v
        fed = (F.silu(y @ w["gate"].T) * (y @ w["up"].T)) @ w["down"].T
        x = x + attended.transpose(1, 2).flatten(2) @ w["o"].T + fed
    return F.rms_norm(x, (module.D,), eps=1e-6) @ head.T


def test_the_example_computes_what_plain_torch_does() -> None:
    module = example()
    graph = module.new_graph()
    ids = torch.tensor([[5, 9, 2, 77, 31], [8, 8, 1, 0, 95]])
    cache = torch.full((2, module.K, module.T, module.H), 50.0)
    got = Executor(read_layers(graph.backend, graph.network)).run(
        {
            "input_ids": ids.int(),
            "position_ids": torch.arange(5).repeat(2, 1).int(),
            "write_indices": torch.zeros(2).int(),
            "kv_lengths": torch.full((2,), 5).int(),
            **{f"past_{kind}_{i}": cache for kind in ("key", "value") for i in range(module.LAYERS)},
        }
    )
    torch.testing.assert_close(got["logits"], plain_logits(module, ids), rtol=1e-4, atol=1e-4)


def test_the_readmes_command_prints_what_the_readme_shows(tmp_path: Path) -> None:
    (text,) = blocks(FOLDER / "README.md", "text")
    assert run_readme("custom-decoder", tmp_path) == text
