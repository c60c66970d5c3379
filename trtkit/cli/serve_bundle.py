"""`trtkit serve BUNDLE`: a language model with an OpenAI-compatible API."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from trtkit.cli.say import say, warn
from trtkit.cli.server_log import server_log
from trtkit.cli.serving_options import faults_by_flag, split_options
from trtkit.cli.visible import echo

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.deployment.dynamo.fleet import Fleet
    from trtkit.deployment.dynamo.fleet_options import FleetOptions


def serve_bundle(path: Path, options: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises DeployError, BundleError, MissingPackageError."""
    from trtkit.deployment.dynamo.extra import require_dynamo, require_nixl
    from trtkit.runtime.distributed.world import launched_rank

    if launched_rank():
        _join(path)
    require_dynamo()
    if options["prefill_workers"]:
        require_nixl()
    elif options["prefill_bundle"]:
        raise click.UsageError("--prefill-bundle needs --prefill-workers")
    from trtkit.bundle.bundle import open_bundle
    from trtkit.deployment.dynamo.fleet import Fleet
    from trtkit.deployment.dynamo.fleet_options import FleetOptions
    from trtkit.deployment.dynamo.model_folder import read_model
    from trtkit.deployment.dynamo.prefill_bundle import check_prefill_bundle
    from trtkit.deployment.ports import free_ports
    from trtkit.runtime.adapters import check_adapters
    from trtkit.runtime.head_tokens import head_tokens
    from trtkit.runtime.weight_budget import weight_budget_bytes
    from trtkit.serving_options import ServingOptions

    model = read_model(path)
    if options["prefill_bundle"]:
        check_prefill_bundle(open_bundle(options["prefill_bundle"]), open_bundle(model.path))
    values, options = split_options(options)
    serving = ServingOptions(**values)
    name = options.pop("name") or model.path.resolve().name
    with faults_by_flag():
        weight_budget_bytes(open_bundle(model.path), serving.weight_budget_gib)
        head_tokens(open_bundle(model.path), serving.speculate)
        check_adapters(open_bundle(model.path), serving.lora or {}, name)
    port = options.pop("http_port") or free_ports(1)[0]
    fleet_options = FleetOptions(name, port=port, serving=serving, **options)
    show = server_log(lambda line: " INFO " in line, quiet=quiet)
    try:
        with Fleet(model, fleet_options, lambda who, line: show(f"{who}: {line}")) as fleet:
            _warn(fleet)
            fleet.wait_ready()
            _print(fleet, as_json=as_json)
            fleet.watch()
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(0)


def _join(path: Path) -> NoReturn:
    """Be a rank of the model until rank 0, which serves, is over."""
    from trtkit.bundle.bundle import open_bundle
    from trtkit.runtime.decoder.open import open_execution

    open_execution(open_bundle(path))
    sys.exit(0)


def _warn(fleet: Fleet) -> None:
    from trtkit.deployment.ports import is_loopback

    options = fleet.options
    workers = f"{options.replicas} worker{'s' if options.replicas > 1 else ''}"
    if options.prefill_workers:
        workers += f", {options.prefill_workers} more for prompts,"
    say(f"starting NVIDIA Dynamo's frontend and {workers} for {fleet.model.path}")
    if not is_loopback(options.host):
        warn(f"warning: other machines can reach {options.host}; Dynamo does not authenticate clients")
    if not fleet.model.has_chat:
        warn("note: the tokenizer has no chat template, so there are completions but no chat")


def _print(fleet: Fleet, *, as_json: bool) -> None:
    """Print where the model is, and a request to try."""
    options = fleet.options
    if as_json:
        pids = {"frontend": fleet.frontend_pid, "workers": [member.process.pid for member in fleet.workers]}
        ports = [member.health_port for member in fleet.workers]
        line = {"url": options.url, "model": options.name, "chat": fleet.model.has_chat, "pids": pids}
        echo(json.dumps({**line, "worker_ports": ports, "admin_token": fleet.admin_token}))
        return
    echo(f"{options.name} at {options.url}")
    echo(_curl(options, has_chat=fleet.model.has_chat))
    echo("Ctrl-C stops it")


def _curl(options: FleetOptions, *, has_chat: bool) -> str:
    question = "Why is the sky blue?"
    body = {"messages": [{"role": "user", "content": question}]} if has_chat else {"prompt": question}
    path = "chat/completions" if has_chat else "completions"
    data = json.dumps({"model": options.name, **body, "max_tokens": 64})
    return f"curl {options.url}/{path} -H 'Content-Type: application/json' -d '{data}'"
