"""The `trtkit` group: commands are imported only when they run, so that `--help` is instant."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from trtkit.cli.options import Terminated, is_logged, run_options
from trtkit.cli.visible import visible
from trtkit.errors import TrtkitError
from trtkit.extras import missing_package
from trtkit.threads import wait_briefly
from trtkit.version import __version__

# Command names with their one-line help, in the order of work. Each is in trtkit/cli/<name>.py as `command`.
GROUPS = {
    "Get started": {
        "doctor": "Check what this machine can do and what is missing.",
        "list": "List shipped configs, bundles and the build cache.",
        "config": "Write, check and describe configs.",
        "fetch": "Fetch what a config needs, or a model from Hugging Face's hub.",
        "inspect": "Show an ONNX file, a config's network or a bundle.",
        "plan": "Estimate which GPUs fit a model and its best-case speed.",
        "simulate": "Simulate serving a language model: latency, GPUs, cost.",
    },
    "Build and verify": {
        "quantize": "Quantize a model's weights, activations and KV caches.",
        "build": "Build an engine bundle from a model or a config.",
        "verify": "Check a network's numerics without a GPU.",
        "export": "Write a language model as a TensorRT-LLM checkpoint.",
        "plugins": "List custom ops, or check them against their references.",
    },
    "Run and measure": {
        "run": "Run a model on pictures, videos, texts or arrays.",
        "generate": "Generate text with a language model.",
        "chat": "Chat with a language model.",
        "eval": "Measure a model's quality: perplexity, accuracy, mAP.",
        "compare": "Compare a model's precisions and quantization methods.",
        "bench": "Benchmark a bundle, alone or against other runtimes.",
    },
    "Deploy": {
        "deploy": "Deploy a bundle to a Triton model repository.",
        "serve": "Serve language models, or a model repository.",
        "check": "Check that a server serves a bundle correctly.",
    },
    "Shell": {
        "completion": "Print the completion script for bash, zsh or fish.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
_WIDEST = max(map(len, COMMANDS))


class _UnreadError(Exception):
    """A BrokenPipeError that click does not see; it would exit with 1."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of work."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"trtkit.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by the step of work, without importing them."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(_WIDEST), text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer commands without importing them."""
        commands = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except BrokenPipeError as error:  # of --help
            raise _UnreadError from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; if there is a log, record how the command ended."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _UnreadError from error
        except BaseException as stop:
            if isinstance(stop, SystemExit) and isinstance(stop.__context__, BrokenPipeError):  # rich exits with 1
                raise _UnreadError from stop
            if is_logged(ctx):
                from trtkit.cli.logs import log_end

                log_end(stop)
            raise


EPILOG = """\b
Examples:
  trtkit build efficientnet-lite0
  trtkit build model.onnx --precision fp16 --target sm89
  trtkit inspect bundles/efficientnet-lite0
  trtkit verify bundles/efficientnet-lite0 --html report.html
  trtkit generate bundles/llama "Hello"
  trtkit bench bundles/efficientnet-lite0 --compare onnxruntime
  trtkit deploy bundles/efficientnet-lite0 --repository models

\b
`trtkit COMMAND --help` shows the examples of a command. The options above go
before or after the command. Results go to stdout, everything else to stderr.

\b
Exit codes: 0 done, 1 failed, 2 wrong usage or config, 3 out of tolerance
(verify, check, plugins check), 4 a regression (bench diff), 130 cancelled,
141 the reader of a pipe is gone, 143 terminated."""


# click's suggestions come from `commands`; `get_command` imports the real ones.
_STAND_INS = {name: click.Command(name, help=text) for name, text in COMMANDS.items()}


@click.group(
    cls=LazyGroup, commands=_STAND_INS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@run_options
@click.version_option(__version__, prog_name="trtkit")
def cli() -> None:
    """Build TensorRT engines, verify them without a GPU, benchmark and deploy them.

    `build` turns a config into a bundle; `verify`, `run`, `bench` and `deploy` work on bundles.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; user errors end in a message rather than a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _terminate)
    wait_briefly()
    try:
        try:
            _run(words)
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, _UnreadError):
        _leave_quietly()


def _run(words: list[str]) -> None:
    """Run the command line `words`; exceptions become messages and exit codes."""
    try:
        cli.main(args=words, prog_name="trtkit", standalone_mode=False, color=_colour(), obj=words)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        if "--json" in words:
            click.echo(_usage_json(error))
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("cancelled: nothing was written", err=True)
        sys.exit(130)
    except Terminated:
        click.echo("terminated: nothing was written", err=True)
        raise
    except (TrtkitError, ImportError) as error:
        problem = error if isinstance(error, TrtkitError) else missing_package(error)
        if problem is None:
            raise
        _show(problem, as_json="--json" in words)
        sys.exit(problem.exit_code)


def _usage_json(error: click.ClickException) -> str:
    import json

    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "trtkit"
    fields = {"error": type(error).__name__, "what": error.format_message(), "where": path}
    return json.dumps({**fields, "fix": f"see `{path} --help`"})


def _terminate(_signal: int, _frame: object) -> None:
    """Exit like on any exception: children are ended, incomplete folders removed."""
    raise Terminated


def _leave_quietly() -> None:
    """Exit as a program that SIGPIPE ends; Python would complain again when it flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    sys.exit(128 + signal.SIGPIPE)


def _show(error: TrtkitError, *, as_json: bool) -> None:
    """Print an error for a person on stderr, or for a program on stdout."""
    if as_json:
        import json

        click.echo(json.dumps(error.to_json()))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {visible(str(error))}", err=True, color=_colour())


def _colour() -> bool | None:
    """Return whether to use color on any output; None for terminals only.

    Reads NO_COLOR and TERM=dumb, which take precedence, and FORCE_COLOR, as rich does.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in {"dumb", "unknown"}:
        return False
    return True if os.environ.get("FORCE_COLOR") else None
