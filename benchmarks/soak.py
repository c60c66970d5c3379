"""A language model server under random and malformed load: `python -m benchmarks.soak [MINUTES]`, 30 by default.

Three clients send valid, invalid, oversized, truncated and garbage requests (soak_load). A canary repeats one request:
its tokens must equal those of the same bundle in this process, and no piece of its answer may be late. Memory, threads
and descriptors of the server and of the model's process are sampled. The model is a tiny Llama with SmolLM2's
tokenizer, so that serving dominates.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measure import write
from benchmarks.soak_load import TIMEOUT_S, Attacker
from tests.support import tiny_chat
from trtkit import LLM, SamplingParams
from trtkit.cli.main import main as trtkit
from trtkit.deployment.triton.endpoints import free_ports
from trtkit.deployment.triton.health import stubs
from trtkit.deployment.triton.local_server import LocalServer, ServeOptions
from trtkit.deployment.triton.server_files import find_server
from trtkit.errors import DeployError
from trtkit.runtime.triton_client import Client, parse_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.deployment.triton.endpoints import Endpoints

MODEL, PROMPT, TOKENS = "soak", "Gravity is a force that", 12
CLIENTS, EVERY_S, PAUSE_S = 3, 5.0, 0.1
WARM_UP = 0.2
"""Share of the time in which memory may still grow, as allocators and caches of guides fill."""


@dataclass
class Canary:
    """Repeats one request and checks the answers. stalls_s: the longest wait for a piece of each answer."""

    endpoints: Endpoints
    wanted: list[int]
    stalls_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def run(self, until_s: float) -> None:
        """Send requests until a time of the monotonic clock."""
        inputs: dict[str, Any] = {
            "text_input": np.array([[PROMPT.encode()]], dtype=np.object_),
            "max_tokens": np.array([[TOKENS]], np.int32),
            "ignore_eos": np.array([[True]]),
            "stream": np.array([[True]]),
            "priority": np.array([[-1]], np.int32),
        }
        with Client(parse_url(self.endpoints.grpc), TIMEOUT_S) as client:
            while time.monotonic() < until_s:
                self._ask(client, inputs)
                time.sleep(PAUSE_S)

    def _ask(self, client: Client, inputs: dict[str, Any]) -> None:
        ids, longest_s, last_s = [], 0.0, time.monotonic()
        try:
            for piece in client.responses(MODEL, inputs):
                ids += piece["output_ids"].reshape(-1).tolist()
                now_s = time.monotonic()
                longest_s, last_s = max(longest_s, now_s - last_s), now_s
        except DeployError as error:
            self.wrong.append(str(error))
        else:
            if ids != self.wanted:
                self.wrong.append(f"tokens {ids}")
        self.stalls_s.append(max(longest_s, time.monotonic() - last_s))


@dataclass(frozen=True)
class Sample:
    """A process's resources at one time."""

    at_s: float
    rss_mib: float
    threads: int
    descriptors: int

    @classmethod
    def of(cls, pid: int, at_s: float) -> Sample:
        """Return a process's current resources."""
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        rss_mib = int(fields["VmRSS"].split()[0]) / 1024
        return cls(at_s, rss_mib, int(fields["Threads"]), len(list(Path(f"/proc/{pid}/fd").iterdir())))


def soak(minutes: float) -> dict[str, Any]:
    """Run the load; return all figures."""
    with tempfile.TemporaryDirectory(prefix="trtkit-soak-") as folder:
        bundle, repository = tiny_chat.build_smollm2_words(Path(folder)), Path(folder) / "models"
        with LLM(bundle) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
            wanted = list(llm.generate(PROMPT, params)[0].outputs[0].token_ids)
        trtkit(["deploy", str(bundle), "--repository", str(repository), "--name", MODEL, "-q"])
        with LocalServer(find_server(), ServeOptions(repository, free_ports(), exit_timeout_s=2)) as server:
            server.wait_ready(300)
            return _under_load(server, wanted, 60 * minutes)


def _under_load(server: LocalServer, wanted: list[int], seconds: float) -> dict[str, Any]:
    ends = server.options.endpoints
    canary = Canary(ends, wanted)
    clients = [Attacker(seed, ends, MODEL) for seed in range(CLIENTS)]
    (stub,) = stubs(server.pid)
    began_s = time.monotonic()
    runs = [canary.run, *(client.run for client in clients)]
    threads = [threading.Thread(target=run, args=(began_s + seconds,)) for run in runs]
    for thread in threads:
        thread.start()
    samples: dict[str, list[Sample]] = {"server": [], "model's process": []}
    while any(thread.is_alive() for thread in threads) and server.exit_code() is None:
        for name, pid in (("server", server.pid), ("model's process", stub)):
            samples[name].append(Sample.of(pid, time.monotonic() - began_s))
        time.sleep(min(EVERY_S, seconds / 20))
    for thread in threads:
        thread.join()
    return {
        "minutes": round(seconds / 60, 2),
        "clients": CLIENTS,
        "requests": dict(sorted(sum((client.outcomes for client in clients), Counter()).items())),
        "failures": [text for client in clients for text in client.failures][:20],
        "canary": _canary_figures(canary),
        **{name: _figures(each) for name, each in samples.items()},
    }


def _canary_figures(canary: Canary) -> dict[str, Any]:
    cuts = statistics.quantiles(canary.stalls_s, n=100, method="inclusive")
    longest = {"p50": cuts[49], "p99": cuts[98], "max": max(canary.stalls_s)}
    return {
        "answers": len(canary.stalls_s),
        "wrong": canary.wrong[:20],
        "longest wait for a piece, s": {name: round(value, 3) for name, value in longest.items()},
    }


def _figures(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return a process's memory, threads and descriptors; growth after the warm-up is the slope of a linear fit."""
    later = samples[int(WARM_UP * len(samples)) :]
    slope, _ = np.polyfit([each.at_s / 60 for each in later], [each.rss_mib for each in later], 1)
    minutes = (later[-1].at_s - later[0].at_s) / 60
    return {
        "rss_mib": {
            "first": round(samples[0].rss_mib, 1),
            "after warm-up": round(later[0].rss_mib, 1),
            "last": round(later[-1].rss_mib, 1),
            "max": round(max(each.rss_mib for each in samples), 1),
            "growth after warm-up, by a fitted line": round(float(slope) * minutes, 2),
        },
        "threads": {"min": min(each.threads for each in later), "max": max(each.threads for each in later)},
        "descriptors": {
            "min": min(each.descriptors for each in later),
            "median": statistics.median(each.descriptors for each in later),
            "max": max(each.descriptors for each in later),
            "last": later[-1].descriptors,
        },
        "rss_mib by second": {
            round(each.at_s): round(each.rss_mib, 1) for each in samples[:: max(1, len(samples) // 20)]
        },
    }


if __name__ == "__main__":
    print(f"wrote {write('soak', soak(float(sys.argv[1]) if len(sys.argv) > 1 else 30))}")
