"""The command line of a worker, which those who start one write and the worker reads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.runtime.scheduling import SCHEDULES

if TYPE_CHECKING:
    from trtkit.runtime.weight_budget import WeightBudget

MODULE = "trtkit.deployment.dynamo.worker"
BLOCK_SIZE = 16
"""Tokens of a block, by which the router knows what a worker's cache holds."""
ADMIN_TOKEN = "TRTKIT_ADMIN_TOKEN"
"""Variable with the secret that a request to a worker's own port must carry to change the worker."""
SLEEP, WAKE_UP = "sleep", "wake_up"
"""Updates of a worker that free its GPU's memory, and load the model again."""
SILENT = "trtkit_engine_silent_seconds"
ASLEEP = "trtkit_asleep"
"""A worker's metric: how long its engine's step takes by now. A fleet notices by it that an engine hangs."""


def worker_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m trtkit.deployment.dynamo.worker`."""
    parser = argparse.ArgumentParser(f"python -m {MODULE}", description="Serve a bundle as a worker of NVIDIA Dynamo.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--name", help="the model's name in requests; the folder's by default")
    parser.add_argument("--namespace", default="dynamo")
    parser.add_argument("--slots", type=int, help="sequences at once; the engine's number by default")
    parser.add_argument("--cache-gib", type=float, help="memory for paged caches on each GPU")
    parser.add_argument("--host-cache-gib", type=float, default=2.0, help="host memory for what the caches cannot hold")
    parser.add_argument("--weight-budget-gib", type=_budget, help="memory for weights on each GPU, or `auto`")
    parser.add_argument("--speculate", type=int, help="draft tokens of the bundle's own head; 0 for none")
    parser.add_argument("--cache-dir", type=Path, help="folder that keeps caches for later runs")
    parser.add_argument("--cache-dir-gib", type=float, default=16.0, help="largest size of that folder's files")
    parser.add_argument("--max-queue", type=int, default=512, help="prompts that may wait for a slot")
    parser.add_argument("--schedule", default="priority", choices=SCHEDULES, help="which prompt is next")
    parser.add_argument("--share", dest="shares", action="append", type=_weight, help="USER=WEIGHT; may be repeated")
    parser.add_argument("--lora", action="append", type=_adapter, help="NAME=FOLDER; may be repeated")
    parser.add_argument("--endpoint-types", default="chat,completions")
    parser.add_argument("--discovery", default="file", choices=("file", "kubernetes", "etcd", "mem"))
    parser.add_argument("--tool-call-parser")
    parser.add_argument("--reasoning-parser")
    parser.add_argument("--role", default="agg", choices=("agg", "prefill", "decode"), help="agg: prompts and answers")
    parser.add_argument("--lent-mib", type=int, default=1024, help="prefill: memory for caches that are to be read")
    parser.add_argument("--lent-s", type=float, default=60, help="prefill: how long each is kept")
    parser.add_argument("--transfer-s", type=float, default=10, help="decode: how long one may take to arrive")
    parser.add_argument("--no-kv-routing", dest="has_kv_routing", action="store_false")
    return parser


def _budget(text: str) -> WeightBudget:
    """Return GiB, or `auto`."""
    return "auto" if text == "auto" else float(text)


def _adapter(text: str) -> tuple[str, str]:
    """Return a name and a folder."""
    name, _, folder = text.partition("=")
    return name, folder


def _weight(text: str) -> tuple[str, float]:
    """Return a user and a weight."""
    user, _, weight = text.rpartition("=")
    return user, float(weight)
