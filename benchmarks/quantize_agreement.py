"""SmolLM2 quantized: perplexity of ModelOpt's fake-quantized model against that of the network TensorRT builds from it.

ModelOpt's model computes in fp32 in torch, with trtkit's rounded weights where trtkit rounds them; the network computes
in fp16 in the reference executor. If inputs are quantized, a last bit decides some codes, which moves results by as
much as quantizing did, in either direction. So the difference has a standard error over windows of text.
`python -m benchmarks.quantize_agreement [METHOD...]` measures only some methods again.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.measure import RESULTS, write, write_between
from benchmarks.quantize_llm import ROOT, calibration_text, texts
from trtkit.config.load import load_config
from trtkit.jobs.events import Steps
from trtkit.llm.execution import Call, ReferenceDecoder, config_network
from trtkit.models.registry import decoder_spec
from trtkit.quantization.llm import calibration
from trtkit.quantization.llm.choice import choose
from trtkit.quantization.llm.torch_model import QuantizedTorchModel, quantize_torch_model
from trtkit.sources.decoder_source import open_decoder_source
from trtkit.sources.huggingface.model import encoder
from trtkit.verification.perplexity import mean_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.config.schema import ModelConfig

Json = dict[str, Any]
Windows = np.ndarray[tuple[int, int], np.dtype[np.int64]]
WINDOW = 512
METHODS = {
    "int8_wo": 4,
    "int4_wo": 4,
    "int4_awq": 4,
    "int4_gptq": 4,
    "int8_sq": 16,
    "fp8": 16,
    "fp8_pc": 16,
    "int8": 16,
}
"""Number of windows of each text, by method."""
QUIET = Steps(lambda _: None)


def quantized(config: ModelConfig) -> QuantizedTorchModel:
    """Quantize a config's model in this process; its model computes with rounded weights and inputs."""
    options, opened = config.quantize, open_decoder_source(config.source)
    assert options is not None
    ids = encoder(opened).encode(calibration.read_text(options.calibration))
    choice = choose(decoder_spec(opened.config), options)
    return quantize_torch_model(
        opened, options, choice, texts=calibration.windows(ids, options.calibration), steps=QUIET
    )


def faked(made: QuantizedTorchModel, windows: Windows) -> Iterator[torch.Tensor]:
    """Yield the quantized model's logits [S, V] of each window."""
    for ids in windows:
        with torch.inference_mode():
            logits: torch.Tensor = made.model(torch.from_numpy(ids)[None], use_cache=False).logits[0]
        yield logits


def executed(config: ModelConfig, folder: Path, windows: Windows) -> Iterator[torch.Tensor]:
    """Yield the logits [S, V] of the network built from the checkpoint in `folder`."""
    source = config.source.model_copy(update={"hf": str(folder), "gguf": None, "requires": None})
    built = config.model_copy(update={"source": source, "quantize": None})
    decoder = ReferenceDecoder(config_network(built, "tensorrt_rtx", "all"), 1)
    for ids in windows:
        yield decoder.forward(Call(0, ids[None], np.array([0]), np.array([len(ids)])))[0].clone()


def all_windows(made: QuantizedTorchModel, count: int) -> Windows:
    """Return `count` windows of each text."""
    tokenizer = encoder(made.opened)
    ids = [tokenizer.encode(text[: 6 * WINDOW * count])[: WINDOW * count] for text in texts().values()]
    return np.array(ids).reshape(-1, WINDOW)


def measure(method: str, folder: Path) -> Json:
    """Return a method's two perplexities over all windows, and their difference."""
    keys = [f"calibration.data={calibration_text(folder)}", "calibration.samples=8", "calibration.length=256"]
    block = ["block=32"] if method.startswith("int4") else []
    config = load_config("llama", [f"quantize.{key}" for key in (f"method={method}", *block, *keys)], "sm89")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = quantized(config)
        windows = all_windows(made, METHODS[method])
        fake = _losses(faked(made, windows), windows)
        shutil.rmtree(folder / "out", ignore_errors=True)
        (folder / "out").mkdir()
        made.write(config, folder / "out", QUIET)
    del made
    network = _losses(executed(config, folder / "out", windows), windows)
    apart = [b - a for a, b in zip(fake, network, strict=True)]
    return {
        "fake": math.exp(statistics.mean(fake)),
        "network": math.exp(statistics.mean(network)),
        "difference_percent": 100 * math.expm1(statistics.mean(apart)),
        "standard_error_percent": 100 * statistics.stdev(apart) / math.sqrt(len(apart)),
        "tokens": windows.size,
    }


def _losses(found: Iterator[torch.Tensor], windows: Windows) -> list[float]:
    """Return the mean loss of each window."""
    return [mean_loss(logits, ids.tolist()) for logits, ids in zip(found, windows, strict=True)]


def table(figures: dict[str, Json]) -> str:
    """Return the figures as Markdown."""
    heads = ["", "fake-quantized", "network", "apart", "standard error", "tokens"]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " --: |" * (len(heads) - 1)]
    for name, row in figures.items():
        apart = f"{row['difference_percent']:+.2f} % | {row['standard_error_percent']:.2f} % | {row['tokens']}"
        lines.append(f"| {name} | {row['fake']:.3f} | {row['network']:.3f} | {apart} |")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    path = RESULTS / "quantize_agreement.json"
    figures: dict[str, Json] = json.loads(path.read_text())["methods"] if path.is_file() and names else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or METHODS:
            figures[name] = measure(name, Path(folder))
            print(name, figures[name], flush=True)
            figures = {known: figures[known] for known in METHODS if known in figures}
            write("quantize_agreement", {"methods": figures})
    if (ROOT / "docs/quantization-costs.md").is_file():
        write_between(ROOT / "docs/quantization-costs.md", "agreement", table(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
