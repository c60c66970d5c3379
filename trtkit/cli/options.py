"""Options that several commands share."""

from __future__ import annotations

import importlib
import shlex
import signal
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from click.parser import _OptionParser

    from trtkit.bundle.bundle import Bundle
    from trtkit.report.page import PageOrigin

    Command = Callable[..., None]


class Terminated(SystemExit):
    """SIGTERM."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


# Keys in the context for options of a run, for the group and its commands.
_QUIET, _VERBOSE, _LOGGED = "trtkit.quiet", "trtkit.verbose", "trtkit.logged"


def is_quiet() -> bool:
    """Whether only results, warnings and errors are shown."""
    return _is_given(_QUIET)


def is_verbose() -> bool:
    """Whether the log is shown on stderr."""
    return _is_given(_VERBOSE)


def is_logged(ctx: click.Context) -> bool:
    """Whether there is a log, in a file or on stderr."""
    return bool(ctx.meta.get(_LOGGED))


def _is_given(name: str) -> bool:
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(name))


def _keep_quiet(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    """Return whether the option was given before or after the command."""
    ctx.meta[_QUIET] = value or ctx.meta.get(_QUIET, False)
    if ctx.meta[_QUIET] and ctx.meta.get(_VERBOSE):
        raise click.UsageError("--quiet and --verbose cannot be used together")
    return bool(ctx.meta[_QUIET])


def _be_verbose(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Show the log from now on."""
    if not value or ctx.resilient_parsing or ctx.meta.get(_VERBOSE):
        return
    from trtkit.cli.logs import log_to_stderr

    ctx.meta[_VERBOSE] = ctx.meta[_LOGGED] = True
    log_to_stderr(ctx)


def _open_log(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is None or ctx.resilient_parsing:
        return
    from trtkit.cli.logs import log_to_file

    log_to_file(ctx, value)
    ctx.meta[_LOGGED] = True


_VERBOSE_OPTION = click.option(
    "--verbose",
    "-v",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_be_verbose,
    help="Show the log on stderr, with timestamps.",
)
_LOG_OPTION = click.option(
    "--log-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_open_log,
    help="Append the log to FILE, including TensorRT's.",
)


def _with_quiet(command: Command, *, is_exposed: bool) -> Command:
    """Add --quiet, --verbose and --log-file to a command, in this order."""
    quiet = click.option(
        "--quiet",
        "-q",
        is_flag=True,
        expose_value=is_exposed,
        callback=_keep_quiet,
        help="Show only results, warnings and errors.",
    )
    with_all: Command = quiet(_VERBOSE_OPTION(_LOG_OPTION(command)))
    return with_all


_GROUP = "help_group"


def grouped(title: str, *options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator of several options that `GroupedCommand` lists under `title`."""

    def decorate(command: Command) -> Command:
        known = len(_parameters(command))
        for option in reversed(options):
            command = option(command)
        for parameter in _parameters(command)[known:]:
            setattr(parameter, _GROUP, title)
        return command

    return decorate


def _parameters(command: Command) -> list[click.Parameter]:
    """Return the parameters that decorators have added so far, the last one first."""
    parameters: list[click.Parameter] = getattr(command, "__click_params__", [])
    return parameters


class GroupedCommand(click.Command):
    """A command whose help groups its options: its own first, then each group of `grouped`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                sections.setdefault(getattr(parameter, _GROUP, "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class RenamedOption(click.Option):
    """An option that still accepts its old names, with a note on stderr; help does not list them."""

    def __init__(self, names: Sequence[str], *, old: Sequence[str], **kwargs: Any) -> None:
        super().__init__(names, **kwargs)
        self._old = tuple(old)

    def add_to_parser(self, parser: _OptionParser, ctx: click.Context) -> None:
        """Let the parser accept the old names."""
        super().add_to_parser(parser, ctx)
        parser.add_option(self, self._old, self.name, action="append" if self.multiple else "store", nargs=self.nargs)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, object], args: list[str]
    ) -> tuple[object, list[str]]:
        """Read the value; if an old name was used, print the new one."""
        words = [word.partition("=")[0] for word in ctx.find_root().obj or ()]
        for old in self._old:
            if self.name in opts and old in words:
                new = max(self.opts, key=len)
                click.echo(f"note: `{old}` is now `{new}`; the old name will be removed", err=True)
        return super().handle_parse_result(ctx, opts, args)


def check_outputs(*paths: Path | None) -> None:
    """Refuse output files that could not be written once the work is done. Raises UsageError."""
    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise click.UsageError(f"cannot write `{path}`: no such folder")


def quiet_option(command: Command) -> Command:
    """Add --quiet as the argument `quiet`, and --verbose and --log-file without arguments."""
    return _with_quiet(command, is_exposed=True)


def run_options(command: Command) -> Command:
    """Add the same options to a command without output to silence; it gets no arguments for them."""
    return _with_quiet(command, is_exposed=False)


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
trust_option = click.option(
    "--trust-source", is_flag=True, help="Allow running the Python factory that a bundle names as its source."
)


def check_page(path: Path | None) -> None:
    """Refuse a page that could not be written or drawn once the work is done. Raises UsageError, ImportError."""
    if path is not None:
        check_outputs(path)
        importlib.import_module("trtkit.report.page")


def page_origin(bundle: Bundle | None = None) -> PageOrigin:
    """Return the origin of a page's figures: this command, and a bundle."""
    from trtkit.report.page import PageOrigin

    command = shlex.join(["trtkit", *(click.get_current_context().find_root().obj or ())])
    return PageOrigin(command, "" if bundle is None else f"{bundle.path}, build key {bundle.manifest.build_key}")
