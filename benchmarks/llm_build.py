"""Building Llamas with trtkit against a bare script on the same network: time and peak memory.

Weights are random, and different in all layers; they are written once, in shards, next to the user's cache. `int4` has
blocks of 128, with the rest in fp16: trtkit reads a checkpoint in ModelOpt's format, the bare script maps files with
codes in TensorRT's. `python -m benchmarks.llm_build [PRECISION...] [SIZE...]` measures some again: precisions of the
1.1 B model, and sizes in int4, in billions of parameters, which docs/benchmarking-figures.md shows.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, interleaved, ratio, run_bare, summary, write, write_between
from trtkit.arrays import Array
from trtkit.builder.build_inputs import gather_inputs
from trtkit.builder.jobs import BUILD_STAGE
from trtkit.builder.write_stages import prepare_stages, stage_request
from trtkit.config.load import load_config
from trtkit.files import cache_folder
from trtkit.jobs.runner import ChildRunner
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import model_weights
from trtkit.quantization.llm.choice import linear_layers
from trtkit.quantized_matrix import pack
from trtkit.sources.safetensors_file import INDEX

LLAMA = {
    "model_type": "llama",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
NAMES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "tie_word_embeddings",
)
SIZES = {
    "0.1": (32000, 768, 2048, 12, 12, 4, False),
    "0.5": (32000, 1280, 3456, 24, 20, 4, False),
    "1.1": (32000, 2048, 5632, 22, 32, 4, False),  # TinyLlama-1.1B
    "3": (128256, 3072, 8192, 28, 24, 8, True),  # Llama-3.2-3B
    "8": (128256, 4096, 14336, 32, 32, 8, False),  # Llama-3.1-8B
}
"""Sizes by billions of parameters."""
REPEATS = 2
PRECISIONS = ("fp16", "bf16", "fp32", "int4")
BLOCK = 128
SHARD_BYTES = 2**30
ROOT = Path(__file__).parents[1]


def config_of(size: str) -> dict[str, Any]:
    """Return the config.json of a size."""
    return {**LLAMA, **dict(zip(NAMES, SIZES[size], strict=True))}


def weights_folder(dtype: str, size: str) -> Path:
    """Return a Hugging Face folder with random weights in `dtype`, written if it does not exist yet."""
    folder = cache_folder().parent / "trtkit-benchmarks" / f"llama-{size}b-{dtype}"
    if not (folder / "config.json").exists():
        (folder / "trt").mkdir(parents=True, exist_ok=True)
        fields = config_of(size)
        if dtype == "int4":
            _save_int4(folder, fields)
            (folder / "trt/config.json").write_text(json.dumps(fields))
            fields["quantization_config"] = {
                "quant_method": "modelopt",
                "quant_algo": "W4A16_AWQ",
                "group_size": BLOCK,
            }
        else:
            _save(folder, fields, dtype)
        (folder / "config.json").write_text(json.dumps(fields))
    return folder


class Shards:
    """Writes arrays to safetensors files of about SHARD_BYTES in a folder, with an index."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._arrays, self._files = folder, dict[str, Array](), dict[str, str]()

    def add(self, name: str, array: Array) -> None:
        """Add an array; write a file once there are SHARD_BYTES."""
        self._arrays[name] = array
        if sum(array.nbytes for array in self._arrays.values()) >= SHARD_BYTES:
            self._write()

    def close(self) -> None:
        """Write the remaining arrays and the index."""
        self._write()
        (self._folder / INDEX).write_text(json.dumps({"weight_map": self._files}))

    def _write(self) -> None:
        from safetensors.numpy import save_file

        if self._arrays:
            name = f"model-{len(set(self._files.values())) + 1:05d}.safetensors"
            save_file(self._arrays, str(self._folder / name))
            self._files |= dict.fromkeys(self._arrays, name)
            self._arrays = {}


def _save_int4(folder: Path, config: dict[str, Any]) -> None:
    """Write random codes and scales in ModelOpt's format, and in `trt/` in TensorRT's."""
    spec, generator = decoder_spec(config), np.random.default_rng(0)
    linear = {f"{layer.name}.weight" for layer in linear_layers(spec)} - {"lm_head.weight"}
    theirs, ours = Shards(folder), Shards(folder / "trt")
    for weight in model_weights(spec):
        if weight.path not in linear:
            drawn = _drawn(generator, weight.shape).astype(np.float16)
            theirs.add(weight.name, drawn)
            ours.add(weight.path, drawn)
            continue
        rows, columns = weight.shape
        codes = generator.integers(0, 16, weight.shape, np.uint8)
        scales = generator.uniform(0.002, 0.006, (rows, columns // BLOCK)).astype(np.float16)
        theirs.add(weight.name, codes[0::2] | codes[1::2] << 4)
        theirs.add(f"{weight.name}_scale", scales)
        ours.add(weight.path, pack(codes))
        ours.add(f"{weight.path}_scale", scales)
    theirs.close()
    ours.close()


def _save(folder: Path, config: dict[str, Any], dtype: str) -> None:
    """Write weights in fp32, fp16 or bf16."""
    import ml_dtypes

    kind = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]
    generator, shards = np.random.default_rng(0), Shards(folder)
    for weight in model_weights(decoder_spec(config)):
        shards.add(weight.name, _drawn(generator, weight.shape).astype(kind))
    shards.close()


def _drawn(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return normal weights with standard deviation 0.02; norms' are near 1."""
    return generator.standard_normal(shape, dtype=np.float32) * np.float32(0.02) + np.float32(len(shape) == 1)


def figures(precision: str, size: str = "1.1", rounds: tuple[int, int] = (1, REPEATS)) -> dict[str, Any]:
    """Build a model both ways in turn. rounds: (uncounted, counted)."""
    warmups, repeats = rounds
    folder = weights_folder(precision, size)
    overrides = [
        f"source.hf={folder}",
        f"precision={'fp16' if precision == 'int4' else precision}",
        "llm.max_batch_size=8",
        "llm.max_sequence_length=2048",
    ]
    inputs = gather_inputs(load_config("llama", overrides, "sm80" if precision == "int4" else None), ChildRunner())
    with tempfile.TemporaryDirectory() as text:
        bundle = Path(text)
        (stage,) = prepare_stages(inputs, bundle, ChildRunner()).stages
        request = stage_request(inputs.config, inputs.target, inputs.backend, stage, bundle)
        request = replace(request, plan=bundle / "trtkit.plan")
        read = folder / "trt" if precision == "int4" else folder
        bare = [sys.executable, "-m", "benchmarks.bare_llm_build", str(read), precision, str(bundle / "bare.plan")]
        samples = interleaved(
            {"trtkit": lambda: ChildRunner().run(BUILD_STAGE, request), "bare": lambda: run_bare(bare)},
            repeats,
            warmups,
        )
    ours, others = samples["trtkit"], samples["bare"]
    plans = [run.plan for run in ours if run.plan is not None]
    work = [run.write_s + run.describe_s + run.plan.build_s for run in ours]
    bare_work = [run["work_s"] for run in others]
    memory = [plan.peak_memory_mib for plan in plans]
    bare_memory = [run["peak_memory_mib"] for run in others]
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "parameters": ours[0].decoder.parameters,
        "weight_bytes": ours[0].decoder.weight_bytes,
        "stored_bytes": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        "work_s": {"trtkit": summary(work), "bare": summary(bare_work)},
        "work_ratio": ratio(work, bare_work),
        "peak_memory_mib": {"trtkit": summary(memory), "bare": summary(bare_memory)},
        "peak_memory_ratio": ratio(memory, bare_memory),
    }


def main(names: list[str] | None = None) -> None:
    """Measure and write the results."""
    path = RESULTS / "llm_build.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() and names else {}
    precisions, sizes = known.get("build", {}), known.get("sizes", {})
    for name in names or (*PRECISIONS, *SIZES):
        if name in SIZES:  # large ones take minutes, of which a warm-up would save little
            sizes[name] = figures("int4", name, (1, 3 * REPEATS) if float(name) < 1 else (0, 1))
        else:
            precisions[name] = figures(name)
        ordered = {name: precisions[name] for name in PRECISIONS if name in precisions}
        print(write("llm_build", {"build": ordered, "sizes": {name: sizes[name] for name in SIZES if name in sizes}}))
    for what, result in (*precisions.items(), *sizes.items()):
        time_ratio, memory_ratio = result["work_ratio"], result["peak_memory_ratio"]
        print(f"{what}: time {time_ratio}x, peak memory {memory_ratio}x of a bare script")
    if sizes:
        show(sizes)


def show(sizes: dict[str, Any]) -> None:
    """Plot time and peak memory over parameters, and write the table in docs/benchmarking-figures.md."""
    import altair as alt

    from trtkit.report import charts

    x = charts.ChartAxis("parameters", "parameters, 10^9")
    panels = {"work_s": ("s", "build time, s", 1.0), "peak_memory_mib": ("gib", "peak memory, GiB", 2**10)}
    drawn = []
    for key, (field, title, unit) in panels.items():
        rows: list[charts.Row] = [
            {
                "parameters": result["parameters"] / 1e9,
                field: result[key][who]["median"] / unit,
                "who": "trtkit" if who == "trtkit" else "a bare script",
            }
            for result in sizes.values()
            for who in ("trtkit", "bare")
        ]
        colours = charts.colour("who", "", {"trtkit": charts.BLUE, "a bare script": charts.ORANGE})
        drawn.append(charts.lines(rows, (x, charts.ChartAxis(field, title)), colours).properties(width=250, height=220))
    alt.hconcat(*drawn).save(str(ROOT / "docs/images/llm-build.svg"))
    write_between(ROOT / "docs/benchmarking-figures.md", "build sizes", _table(sizes))


def _table(sizes: dict[str, Any]) -> str:
    """Return a table with a row per size."""
    lines = [
        "| parameters | weights | build time | of a bare script | peak memory | of a bare script |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in sizes.values():
        gib, time_s = result["peak_memory_mib"]["trtkit"]["median"] / 2**10, result["work_s"]["trtkit"]["median"]
        lines.append(
            f"| {result['parameters'] / 1e9:.2f} B | {result['stored_bytes'] / 2**30:.2f} GiB | {time_s:.0f} s "
            f"| {result['work_ratio']:.2f}x | {gib:.1f} GiB | {result['peak_memory_ratio']:.2f}x |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
