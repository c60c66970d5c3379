"""The overhead of a Triton server against the same runtime in this process: `python -m benchmarks.serve`.

Vision: EfficientNet-Lite0 on tensors; the clients use tritonclient's asyncio gRPC API in a separate process.
LLM: SmolLM2 with NVIDIA's AIPerf as the client, which needs its own environment: set AIPERF to its program. Without it
the LLM part is skipped, which the results state. Concurrency is the number of requests in flight.
The runtime uses one thread on both sides, since the client needs a core (AIPerf keeps one fully busy).
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.measure import ratio, summary, write, write_between
from benchmarks.serve_llm import llm_figures
from benchmarks.serve_load import InProcess, Served
from trtkit.builder.build import build_bundle
from trtkit.cli.main import main as trtkit
from trtkit.config.load import load_config
from trtkit.deployment.triton.endpoints import free_ports
from trtkit.deployment.triton.local_server import LocalServer, ServeOptions
from trtkit.deployment.triton.server_files import find_server
from trtkit.jobs.runner import ChildRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONCURRENCY, REPEATS, SECONDS = (1, 8, 32), 3, 4.0
DOCS, RATIO = Path(__file__).parents[1] / "docs" / "serving-costs.md", "throughput, served to in process"
VISION, LLM_MODEL = "efficientnet-lite0", "llama"


def main() -> None:
    """Measure and write benchmarks/results/serve.json."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the server's models
    with tempfile.TemporaryDirectory(prefix="trtkit-serve-") as folder:
        root = Path(folder)
        bundles = {name: _bundle(root, name) for name in (VISION, LLM_MODEL)}
        repository = root / "models"
        for name, form in ((VISION, "tensors"), (LLM_MODEL, "auto")):
            trtkit(["deploy", str(bundles[name]), "--repository", str(repository), "--as", form, "-q"])
        options = ServeOptions(repository, free_ports(), exit_timeout_s=2)
        with LocalServer(find_server(), options) as server:
            server.wait_ready(300)
            figures = {
                "vision": _vision(bundles[VISION], server.options.endpoints.grpc.removeprefix("grpc://")),
                "llm": llm_figures(bundles[LLM_MODEL], server.options.endpoints.http, CONCURRENCY),
            }
    write_between(DOCS, "serve", table(figures))
    print(f"wrote {write('serve', figures)}")


def table(figures: Mapping[str, Any]) -> str:
    """Return the table in docs/serving-costs.md."""
    rows = [
        "| model | under way | in process | served | ratio | served p50, p99 |",
        "| --- | --: | --: | --: | --: | --- |",
    ]
    for concurrency in CONCURRENCY:
        found = figures["vision"][f"concurrency {concurrency}"]
        rates = [f"{found[side]['images_per_s']['median']:.1f} images/s" for side in ("in process", "served")]
        latency = found["served"]["latency_ms"]
        cells = [*rates, f"{found[RATIO]:.2f}", f"{latency['p50']:.0f} ms, {latency['p99']:.0f} ms"]
        rows.append(f"| {VISION} | {concurrency} | {' | '.join(cells)} |")
    for concurrency in CONCURRENCY if "left out" not in figures["llm"] else ():
        found = figures["llm"][f"concurrency {concurrency}"]
        rates = [f"{found[side]['tokens_per_s']['median']:.1f} tokens/s" for side in ("in process", "served")]
        latency = found["served"]["inter_token_latency_ms"]
        cells = [*rates, f"{found[RATIO]:.2f}", f"{latency['p50']:.0f} ms, {latency['p99']:.0f} ms between tokens"]
        rows.append(f"| SmolLM2-135M | {concurrency} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _bundle(root: Path, name: str) -> Path:
    return build_bundle(load_config(name), root / name, ChildRunner()).bundle.path


def _vision(bundle: Path, url: str) -> dict[str, Any]:
    """Return images per second and latency at each concurrency, with one image per request."""
    local = InProcess(bundle)
    found: dict[str, Any] = {
        "model": f"{VISION}, fp32, one image a request, reference executor with one thread on both sides",
        "client": "tritonclient.grpc.aio in its own process; inputs as raw binary tensors",
        "in process": "one call of a batch as large as the concurrency, again and again",
    }
    for concurrency in CONCURRENCY:
        samples: dict[str, list[Mapping[str, Any]]] = {"in process": [], "served": []}
        for _ in range(REPEATS):
            samples["in process"].append(local.run(concurrency, SECONDS))
            samples["served"].append(Served(url, VISION).run(concurrency, SECONDS))
        found[f"concurrency {concurrency}"] = _compared(samples)
    return found


def _compared(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return both sides' throughput and latency, and the ratios of their medians."""
    rates = {side: [run["per_second"] for run in runs] for side, runs in samples.items()}
    latencies = {side: [value for run in runs for value in run["latencies_ms"]] for side, runs in samples.items()}
    found: dict[str, Any] = {
        side: {"images_per_s": summary(rates[side]), "latency_ms": _percentiles(latencies[side])} for side in samples
    }
    found[RATIO] = ratio(rates["served"], rates["in process"])
    medians = {side: statistics.median(values) for side, values in latencies.items()}
    found["overhead_ms"] = round(medians["served"] - medians["in process"], 2)
    return found


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "requests": len(values)}


if __name__ == "__main__":
    main()
