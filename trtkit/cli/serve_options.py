"""The options of `trtkit serve`: for a bundle served by Dynamo, and for a repository served by Triton."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli.options import grouped
from trtkit.cli.serving_options import serving_options

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = Callable[..., None]


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
    return grouped("A bundle of a language model", *_BUNDLE)(serving_options("serve")(command))


def repository_options(command: Command) -> Command:
    """Give a command the options of Triton's model repository."""
    return grouped("A model repository", *_REPOSITORY)(command)
