"""Build a 1.1 B-parameter Llama with trtkit, and with a bare script on the same network: time and peak memory.

The weights are random and unique, made once in a folder beside the user's cache. `int4` is in blocks of 128, the rest
in fp16: trtkit reads a checkpoint in ModelOpt's form, the bare script codes as TensorRT takes them, mapped from a file.
`python -m benchmarks.llm_build [PRECISION...]` measures some again and keeps the others.
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

from benchmarks.measure import RESULTS, interleaved, ratio, run_bare, summary, write
from trtkit.config.load import load_config
from trtkit.engine.build_inputs import gather_inputs
from trtkit.engine.cache import cache_folder
from trtkit.engine.jobs import BUILD_STAGE
from trtkit.engine.write_stages import prepare_stages, stage_request
from trtkit.jobs.runner import ChildRunner

# TinyLlama-1.1B's sizes.
CONFIG = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
REPEATS = 2
PRECISIONS = ("fp16", "bf16", "fp32", "int4")
BLOCK = 128


def weights_folder(dtype: str) -> Path:
    """Return a Hugging Face folder with random weights in `dtype`, made where it is not there yet."""
    folder = cache_folder().parent / "trtkit-benchmarks" / f"llama-1.1b-{dtype}"
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        asked = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": BLOCK}
        fields = {**CONFIG, "quantization_config": asked} if dtype == "int4" else CONFIG
        (folder / "config.json").write_text(json.dumps(fields))
        (_save_int4 if dtype == "int4" else _save)(folder / "model.safetensors", dtype)
    return folder


def _save_int4(path: Path, _dtype: str) -> None:
    """Write random codes with their scales: as ModelOpt does, and beside it as TensorRT takes them (`trt/`)."""
    from safetensors.numpy import save_file

    from trtkit.models.registry import decoder_spec
    from trtkit.models.weights import model_weights
    from trtkit.quantization.llm.choice import linear_layers
    from trtkit.quantized_matrix import pack

    spec, generator = decoder_spec(CONFIG), np.random.default_rng(0)
    linear = {f"{layer.name}.weight" for layer in linear_layers(spec)} - {"lm_head.weight"}
    theirs, ours = {}, {}
    for weight in model_weights(spec):
        if weight.path not in linear:
            drawn = generator.standard_normal(weight.shape, dtype=np.float32) * np.float32(0.02)
            ours[weight.path] = theirs[weight.name] = (drawn + np.float32(len(weight.shape) == 1)).astype(np.float16)
            continue
        rows, columns = weight.shape
        codes = generator.integers(0, 16, weight.shape, np.uint8)
        scales = generator.uniform(0.002, 0.006, (rows, columns // BLOCK)).astype(np.float16)
        theirs[weight.name], theirs[f"{weight.name}_scale"] = codes[0::2] | codes[1::2] << 4, scales
        ours[weight.path], ours[f"{weight.path}_scale"] = pack(codes), scales
    save_file(theirs, str(path))
    (path.parent / "trt").mkdir(exist_ok=True)
    (path.parent / "trt/config.json").write_text(json.dumps(CONFIG))
    save_file(ours, str(path.parent / "trt/model.safetensors"))


def _save(path: Path, dtype: str) -> None:
    """Write normal weights of standard deviation 0.02; norms are near one."""
    import ml_dtypes
    from safetensors.numpy import save_file

    from trtkit.models.registry import decoder_spec
    from trtkit.models.weights import model_weights

    kind = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]
    generator = np.random.default_rng(0)
    arrays = {}
    for weight in model_weights(decoder_spec(CONFIG)):
        drawn = generator.standard_normal(weight.shape, dtype=np.float32) * np.float32(0.02)
        arrays[weight.name] = (drawn + np.float32(len(weight.shape) == 1)).astype(kind)
    save_file(arrays, str(path))


def figures(precision: str) -> dict[str, Any]:
    """Build the model both ways in turn."""
    folder = weights_folder(precision)
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
            {"trtkit": lambda: ChildRunner().run(BUILD_STAGE, request), "bare": lambda: run_bare(bare)}, REPEATS
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
        "work_s": {"trtkit": summary(work), "bare": summary(bare_work)},
        "work_ratio": ratio(work, bare_work),
        "peak_memory_mib": {"trtkit": summary(memory), "bare": summary(bare_memory)},
        "peak_memory_ratio": ratio(memory, bare_memory),
    }


def main(names: list[str] | None = None) -> None:
    """Measure and write the results."""
    path = RESULTS / "llm_build.json"
    results: dict[str, Any] = json.loads(path.read_text())["build"] if path.is_file() and names else {}
    results |= {precision: figures(precision) for precision in names or PRECISIONS}
    print(write("llm_build", {"build": {name: results[name] for name in PRECISIONS if name in results}}))
    for precision, result in results.items():
        time_ratio, memory_ratio = result["work_ratio"], result["peak_memory_ratio"]
        print(f"1.1 B Llama in {precision}: time {time_ratio}x, peak memory {memory_ratio}x of a bare script")


if __name__ == "__main__":
    main(sys.argv[1:])
