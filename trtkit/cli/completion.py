"""`trtkit completion`."""

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from trtkit.cli.options import run_options

EPILOG = """\b
Examples:
  eval "$(trtkit completion bash)"     # in ~/.bashrc
  eval "$(trtkit completion zsh)"      # in ~/.zshrc
  trtkit completion fish > ~/.config/fish/completions/trtkit.fish

\b
Completes commands, options, configs, bundles, targets, the keys of --set and
the GPUs of `plan --gpu`."""
_VARIABLE = "_TRTKIT_COMPLETE"
_PUT = "COMPREPLY+=($value)"


class Bash(BashComplete):
    """Click's script for bash, without a space after incomplete words: `precision=`, `bundles/`."""

    source_template = BashComplete.source_template.replace(
        _PUT, f"{_PUT}\n            [[ $value == *[=/] ]] && compopt -o nospace"
    )


_SHELLS = {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@run_options
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL."""
    click.echo(_SHELLS[shell](ctx.find_root().command, {}, "trtkit", _VARIABLE).source())
