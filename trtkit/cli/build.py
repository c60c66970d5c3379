"""`trtkit build`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli import completions
from trtkit.cli.options import json_option, quiet_option, set_option, target_option

if TYPE_CHECKING:
    from trtkit.engine.build import BuildResult

EPILOG = """\b
Examples:
  trtkit build --config efficientnet-lite0
  trtkit build --config my.yaml --out engines/my --target sm89
  trtkit build --config resnet50 --set precision=fp16 --json"""


@click.command(epilog=EPILOG)
@click.option(
    "--config",
    required=True,
    metavar="FILE",
    help="A YAML file, or the name of a shipped config.",
    shell_complete=completions.configs,
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the bundle.  [default: bundles/NAME]")
@target_option
@set_option
@click.option("--no-cache", is_flag=True, help="Build even if the same build was done before.")
@json_option
@quiet_option
def command(
    config: str,
    out: Path | None,
    target: str | None,
    overrides: tuple[str, ...],
    no_cache: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Build an engine bundle from a config.

    The bundle holds the engine, the network it came from and a manifest. The same build is not done twice.
    """
    from trtkit.cli.progress import show_progress
    from trtkit.config import load_config
    from trtkit.engine.build import build_bundle

    model = load_config(config, overrides, target)
    with show_progress(quiet=quiet or as_json) as runner:
        result = build_bundle(model, out or Path("bundles") / model.name, runner, use_cache=not no_cache)
    if as_json:
        click.echo(json.dumps({"origin": result.origin, "path": str(result.bundle.path), **_manifest(result)}))
    else:
        _render(result)


def _manifest(result: BuildResult) -> dict[str, object]:
    return {"manifest": result.bundle.manifest.model_dump(mode="json")}


def _render(result: BuildResult) -> None:
    """Say what was built, in one table, or that there was nothing to do."""
    from rich.text import Text

    from trtkit.cli.tables import bundle_summary, console

    words = {
        "built": "built",
        "restored": "cache hit: restored, nothing was built",
        "unchanged": "cache hit: already up to date, nothing was done",
    }
    outcome = Text.assemble((words[result.origin], "bold green"), f" {result.bundle.path}")
    console().print(outcome, soft_wrap=True)
    console().print(bundle_summary(result.bundle))
