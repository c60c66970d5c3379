"""MODEL and BUNDLE on this machine: hub models are downloaded, and missing bundles are built."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli import completions
from trtkit.cli.options import is_quiet
from trtkit.cli.say import say
from trtkit.cli.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.config.overrides import Override
    from trtkit.config.schema import ModelConfig
    from trtkit.models.model import Interface

    Command = Callable[..., None]
    Overrides = tuple[str | Override, ...]

_YES = "trtkit.yes"


def _keep_yes(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.meta[_YES] = value


yes_option = click.option(
    "--yes",
    "-y",
    is_flag=True,
    expose_value=False,
    callback=_keep_yes,
    help="Download a model from Hugging Face's hub without asking.",
)


def bundle_argument(command: Command) -> Command:
    """Add the argument `bundle`, which it resolves with `local_bundle`, and --yes to a command."""
    argument: Command = click.argument("bundle", shell_complete=completions.bundles)(yes_option(command))
    return argument


def local_model(name: str) -> str:
    """Return MODEL; for a hub id, the folder of its copy in the hub's cache. Raises SourceError."""
    from trtkit.config.load import is_hub_id

    return str(fetched(name)) if is_hub_id(name) else name


def local_config(name: str, overrides: Overrides = (), target: str | None = None) -> ModelConfig:
    """Return the config that MODEL names; the folder of its `source.hub` is downloaded if it is missing.

    Raises ConfigError, SourceError, BundleError; Abort if the user declines.
    """
    from trtkit.config.load import find_model_config
    from trtkit.sources.package_file import SCHEME

    config = find_model_config(name, overrides, target)
    hub, folder = config.source.hub, config.source.hf
    is_here = folder is None or folder.startswith(SCHEME) or (Path(folder) / "config.json").is_file()
    if hub is not None and folder is not None and not is_here:
        fetched(hub, Path(folder))
    return config


def fetched(hub_id: str, folder: Path | None = None, *, asks: bool = True) -> Path:
    """Return the folder of a hub model, downloaded if it is missing and the user agrees.

    folder: where to; the hub's cache if None. asks: whether to ask the user, unless with --yes.
    Raises SourceError; Abort if the user declines.
    """
    from trtkit.errors import SourceError
    from trtkit.sources import hub

    if folder is None and (cached := hub.cached_folder(hub_id)) is not None:
        return cached
    model = hub.read_hub(hub_id, folder)
    is_terminal = sys.stderr.isatty()
    if asks and not click.get_current_context().meta.get(_YES):
        if not (is_terminal and sys.stdin.isatty()):
            raise SourceError(f"not on this machine ({visible(str(model))})", "", "add --yes to download it")
        click.confirm(f"{visible(str(model))}, from Hugging Face's hub. Download?", default=True, abort=True, err=True)
    else:
        say(f"downloading {model}")
    path = hub.fetch(model, folder, has_bars=is_terminal and not is_quiet())
    say(f"all digests are right: {path}")
    return path


def local_bundle(name: str, *, interface: Interface | None = None) -> str:
    """Return BUNDLE; of a model, the bundle in bundles/NAME, built if it is missing or the model has changed.

    Defaults hold for a bundle that is missing; one that is there keeps the settings that it was built with.
    What is neither is returned as it is, for the error of whoever opens it. interface: what the command needs.
    Raises BundleError if bundles/NAME holds another model, ConfigError for a model with the other interface, and what
    fetching and building raise.
    """
    from trtkit.bundle.bundle import is_bundle, is_bundle_folder, open_bundle
    from trtkit.errors import BundleError, ConfigError
    from trtkit.resolve import resolve

    if is_bundle_folder(name) or not is_model(name):
        return name
    config = local_config(local_model(name))
    model = resolve(config)
    if interface is not None and model.interface != interface:
        what = f"`{name}` is {'not a' if interface == 'tokens' else 'a'} language model"
        fix = "`run` and `deploy` are for other models" if interface == "tokens" else "see `trtkit generate`"
        raise ConfigError(what, [], fix)
    folder = Path("bundles") / config.name
    build = f"trtkit build {shlex.quote(name)}"
    if not is_bundle(folder):
        say(f"`{folder}` is not there yet: building it with defaults; `{build} --set KEY=VALUE` changes them")
    else:
        before = open_bundle(folder).manifest.config
        if before.source != config.source:
            fix = f"give its path if it is the one; `{build} --output FOLDER` builds `{name}` elsewhere"
            raise BundleError(f"`{folder}` was built from another model than `{name}`", str(folder), fix)
        if before not in (config, model.config):  # what the config leaves open is in the manifest
            say(f"note: `{folder}` has other settings than `{name}`; `{build}` would replace it")
        config = before
    from trtkit.builder.build import build_bundle
    from trtkit.cli.progress import show_progress

    with show_progress(quiet=is_quiet()) as runner:
        build_bundle(config, folder, runner)  # does nothing unless the model's files have changed
    return str(folder)


def is_model(name: str) -> bool:
    """Whether a name is a model that `trtkit build` accepts."""
    from trtkit.config.load import file_kind, is_hub_id, shipped_configs

    path = Path(name)
    is_file = path.is_file() and file_kind(path) is not None
    return name in shipped_configs() or is_file or is_hub_id(name) or (path / "config.json").is_file()
