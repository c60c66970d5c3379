"""The model of a command: the argument MODEL, and options that change its config."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from trtkit.cli import completions
from trtkit.cli.local_model import local_config, local_model, yes_option
from trtkit.cli.options import RenamedOption
from trtkit.dtypes import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.bundle.bundle import Bundle
    from trtkit.config.overrides import Override
    from trtkit.config.schema import ModelConfig

    Command = Callable[..., None]
    Overrides = tuple[str | Override, ...]


class _PrecisionChoice(click.Choice[str]):
    """Precisions of a network; for the name of a quantization method, the error explains how to quantize."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from trtkit.quantization_methods import METHODS

        methods = [name for name in METHODS if name.startswith(value)]
        if value not in self.choices and methods:
            self.fail(
                f"`{value}` is a quantization method: `trtkit quantize MODEL --method {methods[0]}`, then build "
                f"what it writes. Precisions of the network are {', '.join(self.choices)}.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


_OPTIONS = (
    click.option("--precision", type=_PrecisionChoice(get_args(Precision)), help="Precision of the network."),
    click.option(
        "--shapes",
        multiple=True,
        metavar="INPUT:SHAPE",
        help="One shape, or min, opt and max: `images:1x3x64x64,8x3x64x64,32x3x64x64`.",
    ),
    click.option(
        "--target",
        metavar="NAME",
        help="GPU to build for: any, local-gpu, sm75, sm80, sm86, sm89, sm120, sm121.",
        shell_complete=completions.targets,
    ),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a config key, e.g. `llm.max_batch_size=4`.",
        shell_complete=completions.config_keys,
    ),
)


def model_argument(*, required: bool = True, bundles: bool = True) -> Callable[[Command], Command]:
    """Return a decorator that adds MODEL as the argument `path`. bundles: whether completion offers bundles too."""
    offers = completions.networks if bundles else completions.configs
    return click.argument("path", metavar="MODEL", required=required, shell_complete=offers)


def model_options(command: Command) -> Command:
    """Add the options of `override_options`, and --yes: a hub id in `path` becomes the folder of the downloaded model.

    Commands without --yes need no weights.
    """
    inner = override_options(command)

    @functools.wraps(inner)
    def with_local_model(path: str | None, **options: object) -> None:
        inner(path=path if path is None else local_model(path), **options)

    return yes_option(with_local_model)


def override_options(command: Command) -> Command:
    """Add --precision, --shapes, --target and --set to a command, as the arguments `target` and `overrides`.

    --precision and --shapes set keys of the config before --set does.
    """

    @functools.wraps(command)
    def with_overrides(
        precision: str | None, shapes: Sequence[str], overrides: tuple[str, ...], **options: object
    ) -> None:
        from trtkit.errors import ConfigError

        try:
            command(overrides=(*_shorthands(precision, shapes), *overrides), **options)
        except ConfigError as error:
            if not shapes:
                raise
            raise ConfigError(
                error.what, [replace(problem, where=_option(problem.where)) for problem in error.problems], error.fix
            ) from None

    for option in reversed(_OPTIONS):
        with_overrides = option(with_overrides)
    return with_overrides


def output_option(text: str, *, file_okay: bool = True) -> Callable[[Command], Command]:
    """Return a decorator that adds --output, the folder of the command's main result, as the argument `out`.

    Files are written by --save FILE and by options named after their format, such as --html FILE. file_okay: whether
    the command itself refuses a path that is a file.
    """
    kind = click.Path(path_type=Path, file_okay=file_okay)
    return click.option("-o", "--output", "out", cls=RenamedOption, old=["--out"], type=kind, metavar="DIR", help=text)


def _shorthands(precision: str | None, shapes: Sequence[str]) -> list[Override]:
    """Return the overrides set by the short options. Raises ConfigError."""
    if precision is None and not shapes:
        return []
    from trtkit.config.overrides import Override
    from trtkit.config.shapes import shapes_override

    changes = [] if precision is None else [Override(("precision",), precision, f"--precision {precision}")]
    return [*changes, *([shapes_override(shapes)] if shapes else [])]


def _option(where: str) -> str:
    """Return the option that sets the key: `profiles.0.images` is `--shapes images`."""
    return where.replace("profiles.0.", "--shapes ").replace("profiles.0", "--shapes").replace("profiles", "--shapes")


def read_model(path: str, overrides: Overrides, target: str | None) -> Bundle | ModelConfig:
    """Return the bundle that MODEL names, or the config with its overrides.

    Raises UsageError for options that would change a bundle, and any error of reading the bundle or config.
    """
    from trtkit.bundle.bundle import is_bundle_folder, open_bundle

    if not is_bundle_folder(path):
        return local_config(path, overrides, target)
    if overrides or target:
        raise click.UsageError(
            "a bundle is already built: --set, --precision, --shapes and --target apply to configs only"
        )
    return open_bundle(path)
