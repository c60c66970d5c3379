"""The options of `trtkit serve`: for a bundle served by Dynamo, and for a repository served by Triton."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli.runtime_options import cache_gib_option, lora_option, speculate_option, weight_budget_option

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = Callable[..., None]


def _weights(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, float] | None:
    """Return users' weights by name, None without any."""
    weights = {}
    for value in values:
        user, _, weight = value.rpartition("=")
        try:
            weights[user] = float(weight)
        except ValueError:
            weights[user] = 0.0
        if not user or not 0 < weights[user] < float("inf"):
            raise click.BadParameter(f"`{value}` is not USER=WEIGHT with a positive number, such as `alice=2`")
    return weights or None


_BUNDLE = (
    click.option("--name", metavar="NAME", help="The model's name in requests.  [default: the folder's]"),
    click.option("--replicas", type=click.IntRange(1, 64), default=1, show_default=True, help="Workers to start."),
    click.option(
        "--prefill-workers",
        type=click.IntRange(0, 64),
        default=0,
        show_default=True,
        help="More workers, which only compute prompts for the others; needs NIXL.",
    ),
    click.option(
        "--prefill-bundle",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        metavar="FOLDER",
        help="Another build of the model for --prefill-workers, such as one with longer prefill steps.  "
        "[default: BUNDLE]",
    ),
    click.option("--slots", type=click.IntRange(1), help="Sequences at once per worker.  [default: the engine's]"),
    cache_gib_option,
    weight_budget_option,
    speculate_option,
    click.option(
        "--host-cache-gib",
        type=click.FloatRange(0),
        default=2.0,
        show_default=True,
        metavar="GIB",
        help="Host memory of each worker for caches that do not fit on the GPU.",
    ),
    click.option(
        "--cache-dir",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="Folder that keeps caches for later runs; each worker has a subfolder.",
    ),
    click.option(
        "--cache-dir-gib",
        type=click.FloatRange(0, min_open=True),
        default=16.0,
        show_default=True,
        metavar="GIB",
        help="Maximum size of each worker's files there.",
    ),
    click.option(
        "--max-queue",
        type=click.IntRange(1),
        default=512,
        show_default=True,
        help="Requests that may wait at a worker; beyond, clients get 503.",
    ),
    click.option(
        "--schedule",
        type=click.Choice(["fcfs", "priority", "mlfq"]),
        default="priority",
        show_default=True,
        help="Which request of a worker runs next; `mlfq` favors short answers.",
    ),
    click.option(
        "--share",
        "shares",
        multiple=True,
        metavar="USER=WEIGHT",
        callback=_weights,
        help="Share workers fairly between users; `*=1` is everyone else.",
    ),
    lora_option,
    click.option(
        "--router",
        type=click.Choice(["kv", "round-robin", "least-loaded", "power-of-two", "random"]),
        default="kv",
        show_default=True,
        help="How requests are spread; `kv` sends a prompt where its beginning is cached.",
    ),
    click.option(
        "--migrations",
        type=click.IntRange(0),
        default=3,
        show_default=True,
        help="How often a request may go on at another worker when its own dies.",
    ),
    click.option(
        "--hang-timeout",
        "hang_timeout_s",
        type=click.IntRange(1),
        default=120,
        show_default=True,
        metavar="SECONDS",
        help="How long one step of a worker may take before it is started again.",
    ),
    click.option("--body-mib", type=click.IntRange(1), help="Largest request.  [default: 4, with images 64]"),
    click.option("--tool-call-parser", metavar="NAME", help="Dynamo's parser of tool calls, e.g. `hermes`."),
    click.option("--reasoning-parser", metavar="NAME", help="Dynamo's parser of reasoning, e.g. `qwen3`."),
)
_REPOSITORY = (
    click.option("--server", metavar="PATH", help="tritonserver binary, or the folder that holds it."),
    click.option("--grpc-port", type=click.IntRange(0, 65535), default=8001, show_default=True),
    click.option("--metrics-port", type=click.IntRange(0, 65535), default=8002, show_default=True),
    click.option(
        "--model-control-mode",
        "control_mode",
        type=click.Choice(["none", "explicit"]),
        default="none",
        show_default=True,
        help="Load all models, or those of --load and those that clients request.",
    ),
    click.option("--load", multiple=True, metavar="NAME", help="Load this model; repeatable."),
    click.option(
        "--allow-undeployed", is_flag=True, help="Also serve models that trtkit did not deploy; runs their code."
    ),
)


def bundle_options(command: Command) -> Command:
    """Give a command the options of a language model's bundle."""
    return functools.reduce(lambda inner, option: option(inner), reversed(_BUNDLE), command)


def repository_options(command: Command) -> Command:
    """Give a command the options of Triton's model repository."""
    return functools.reduce(lambda inner, option: option(inner), reversed(_REPOSITORY), command)
