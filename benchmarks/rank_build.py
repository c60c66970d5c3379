"""Building one rank's share of large Llamas in int4: time and peak memory by number of ranks.

The weights are random codes in blocks of 128 in ModelOpt's format, different in every layer, written once to a folder
next to the user's cache (38 GiB for the 70 B model).
`python -m benchmarks.rank_build [SIZE...]` measures only some sizes again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.llm_build import BLOCK, LLAMA, NAMES, Shards
from benchmarks.measure import RESULTS, write
from trtkit.builder.jobs import BUILD_STAGE
from trtkit.builder.stages import PreparedStage
from trtkit.builder.write_stages import stage_request
from trtkit.config.load import load_config
from trtkit.config.targets import load_target
from trtkit.files import cache_folder
from trtkit.jobs.runner import ChildRunner
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import model_weights
from trtkit.quantization.llm.choice import linear_layers
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from trtkit.arrays import Array

SIZES = {
    "8": ((128256, 4096, 14336, 32, 32, 8, False), (1, 2, 4, 8)),  # Llama-3.1-8B
    "70": ((128256, 8192, 28672, 80, 64, 8, False), (8,)),  # Llama-3.1-70B
}
"""By billions of parameters: sizes of config.json, and numbers of ranks."""


def weights_folder(size: str) -> Path:
    """Return a Hugging Face folder of a size, written if it does not exist yet."""
    folder = cache_folder().parent / "trtkit-benchmarks" / f"llama-{size}b-int4-flipped"
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        fields = {**LLAMA, **dict(zip(NAMES, SIZES[size][0], strict=True))}
        _save(folder, fields)
        quantization = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": BLOCK}
        (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": quantization}))
    return folder


def _save(folder: Path, fields: dict[str, Any]) -> None:
    """Write random codes and scales, drawn once per shape; each matrix flips different bits of them."""
    spec, generator = decoder_spec(fields), np.random.default_rng(0)
    linear = {f"{layer.name}.weight" for layer in linear_layers(spec)} - {"lm_head.weight"}
    drawn: dict[tuple[int, ...], Array] = {}
    shards = Shards(folder)
    for number, weight in enumerate(model_weights(spec)):
        if weight.path not in linear:
            if weight.shape not in drawn:
                normal = generator.standard_normal(weight.shape, dtype=np.float32) * np.float32(0.02)
                drawn[weight.shape] = (normal + np.float32(len(weight.shape) == 1)).astype(np.float16)
            shards.add(weight.name, drawn[weight.shape])
            continue
        rows, columns = weight.shape
        packed, blocks = (rows // 2, columns), (rows, columns // BLOCK)
        if packed not in drawn:
            drawn[packed] = generator.integers(0, 256, packed, np.uint8)
            drawn[blocks] = generator.uniform(0.002, 0.006, blocks).astype(np.float16)
        flips = np.frombuffer(number.to_bytes(2, "little"), np.uint8)
        shards.add(weight.name, drawn[packed] ^ np.tile(flips, columns // 2))
        shards.add(f"{weight.name}_scale", drawn[blocks])
    shards.close()


def figures(size: str, ranks: int) -> dict[str, Any]:
    """Build the first rank's engine."""
    folder = weights_folder(size)
    overrides = [f"source.hf={folder}", "precision=fp16", "llm.max_batch_size=8", "llm.max_sequence_length=2048"]
    overrides += [f"parallel.tensor={ranks}"] if ranks > 1 else []
    config, target = load_config("llama", overrides, "sm80"), load_target("sm80")
    decoder = resolve(config).stages[-1]
    with tempfile.TemporaryDirectory() as text:
        stage = PreparedStage(decoder.name, decoder.writer, decoder.part_names)
        request = stage_request(config, target, "tensorrt_rtx", stage, Path(text))
        result = ChildRunner().run(BUILD_STAGE, replace(request, plan=Path(text) / "rank0.plan"))
    assert result.plan is not None
    assert result.decoder is not None
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "parameters": result.decoder.parameters,
        "rank_weight_bytes": sum(result.network.totals().weight_bytes.values()),
        "plan_bytes": result.plan.size_bytes,
        "work_s": round(result.write_s + result.describe_s + result.plan.build_s, 1),
        "peak_memory_mib": result.plan.peak_memory_mib,
    }


def main(names: list[str] | None = None) -> None:
    """Measure and write the results."""
    path = RESULTS / "rank_build.json"
    known: dict[str, Any] = json.loads(path.read_text())["sizes"] if path.is_file() and names else {}
    for size in names or SIZES:
        known[size] = {str(ranks): figures(size, ranks) for ranks in SIZES[size][1]}
        write("rank_build", {"sizes": {size: known[size] for size in SIZES if size in known}})
    for size, by_ranks in known.items():
        for ranks, result in by_ranks.items():
            memory, plan = result["peak_memory_mib"] / 2**10, result["plan_bytes"] / 2**30
            print(f"{size} B, rank 0 of {ranks}: {result['work_s']} s, peak {memory:.1f} GiB, plan {plan:.2f} GiB")


if __name__ == "__main__":
    main(sys.argv[1:])
