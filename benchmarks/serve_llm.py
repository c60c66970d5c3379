"""SmolLM2 on a server under AIPerf's load, against the same engine and requests in this process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import ratio, summary
from trtkit import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

NEW_TOKENS, REPEATS = 16, 3
SENTENCE = "The engine of the old ship was repaired by a crew that had never seen one like it before"
# AIPerf's template of a request; `text` is the prompt.
_BODY = '{{"text_input": {{{{ text|tojson }}}}, "max_tokens": {tokens}, "stream": true, "ignore_eos": true}}'


def llm_figures(bundle: Path, url: str, concurrencies: Sequence[int]) -> dict[str, Any]:
    """Return tokens per second of both sides at each concurrency. url: the HTTP endpoint's."""
    program = os.environ.get("AIPERF") or shutil.which("aiperf")
    if program is None:
        return {"left out": "no AIPerf: set AIPERF to its program"}
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    found: dict[str, Any] = {
        "model": f"SmolLM2-135M, {NEW_TOKENS} tokens an answer, reference executor with one thread on both sides",
        "client": f"AIPerf {version}, generate_stream over HTTP",
        "in process": "the same prompts, as many under way at once",
    }
    with LLM(bundle) as llm:
        for concurrency in concurrencies:
            prompts = _prompts(max(6, concurrency))
            _local(llm, prompts[:2], 2)
            local, served = [], []
            for _ in range(REPEATS):
                local.append(_local(llm, prompts, concurrency))
                served.append(_aiperf(program, url, bundle, prompts, concurrency))
            rates = [run["output_token_throughput"]["avg"] for run in served]
            found[f"concurrency {concurrency}"] = {
                "in process": {"tokens_per_s": summary([run["tokens_per_s"] for run in local])},
                "served": {"tokens_per_s": summary(rates), **_latencies(served[-1])},
                "first token in process, ms": summary([run["ttft_ms"] for run in local]),
                "throughput, served to in process": ratio(rates, [run["tokens_per_s"] for run in local]),
            }
    return found


def _prompts(count: int) -> list[str]:
    """Return different prompts of about 24 tokens."""
    words = SENTENCE.split()
    return [f"Story {number}: " + " ".join(words[number % 5 :] + words[: number % 5]) for number in range(count)]


def _local(llm: LLM, prompts: Sequence[str], concurrency: int) -> dict[str, float]:
    """Answer the prompts with `concurrency` in flight; return tokens per second and the median time to first token."""
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    waiting, frontend, outputs = list(prompts), llm.frontend, []
    started = time.perf_counter()
    while waiting or frontend.jobs:
        while waiting and len(frontend.jobs) < concurrency:
            frontend.add(waiting.pop(0), params)
        outputs += [job.output() for job in frontend.step()]
    seconds = time.perf_counter() - started
    firsts = sorted(output.metrics.ttft_s or 0.0 for output in outputs)
    tokens = sum(output.metrics.output_tokens for output in outputs)
    return {"tokens_per_s": tokens / seconds, "ttft_ms": 1e3 * firsts[len(firsts) // 2]}


def _aiperf(program: str, url: str, bundle: Path, prompts: Sequence[str], concurrency: int) -> dict[str, Any]:
    """Return AIPerf's measurements for these prompts."""
    with tempfile.TemporaryDirectory() as folder:
        prompts_file = Path(folder) / "prompts.jsonl"
        prompts_file.write_text("\n".join(json.dumps({"text": prompt}) for prompt in prompts))
        extra = {"payload_template": _BODY.format(tokens=NEW_TOKENS), "response_field": "text_output"}
        words = {
            "--model": "llama",
            "--tokenizer": str(bundle / "model"),
            "--url": url,
            "--endpoint-type": "template",
            "--custom-endpoint": "/v2/models/llama/generate_stream",
            "--extra-inputs": json.dumps(extra),
            "--input-file": str(prompts_file),
            "--custom-dataset-type": "single_turn",
            "--concurrency": str(concurrency),
            "--request-count": str(len(prompts)),
            "--warmup-request-count": "2",
            "--output-artifact-dir": folder,
            "--workers-max": "1",
            "--ui": "none",
        }
        command = [program, "profile", "--streaming", "--no-gpu-telemetry"]
        command += [word for pair in words.items() for word in pair]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
        return found


def _latencies(run: dict[str, Any]) -> dict[str, Any]:
    """Return AIPerf's latencies of one run."""
    names = ("time_to_first_token", "inter_token_latency", "request_latency")
    return {f"{name}_ms": {cut: round(run[name][cut], 2) for cut in ("p50", "p99")} for name in names}
