"""Options that several commands share."""

from __future__ import annotations

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
_SET_HELP = "Change a key of the config, such as `precision=fp16`."
set_option = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=_SET_HELP)
target_option = click.option("--target", metavar="NAME", help="Hardware to build for: any, sm80, sm86, sm89, sm120.")
