"""`trtkit serve`: a language model's bundle with Dynamo, or a model repository with Triton."""

from __future__ import annotations

import json
import logging
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import click

from trtkit.cli import completions
from trtkit.cli.local_model import is_model, local_bundle, yes_option
from trtkit.cli.options import GroupedCommand, grouped, is_verbose, json_option, quiet_option
from trtkit.cli.say import JSON_LOG, is_json, record, say, warn
from trtkit.cli.serving_options import faults_by_flag, folders_by_name, serving_options, split_options
from trtkit.cli.visible import echo
from trtkit.errors import DeployError, TrtkitError
from trtkit.serving_options import API_KEY, serving_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtkit.deployment.dynamo.fleet import LocalFleet
    from trtkit.deployment.dynamo.model_folder import ServableBundle
    from trtkit.deployment.dynamo.options import DynamoOptions
    from trtkit.deployment.triton.endpoints import Endpoints, ModelState
    from trtkit.deployment.triton.local_server import LocalServer, ServeOptions
    from trtkit.deployment.triton.server_files import ServerFiles

    Command = Callable[..., None]


LogFormat = Literal["text", "json"]

_BUNDLE = (
    click.option(
        "--name",
        metavar="[MODEL=]NAME",
        multiple=True,
        help="The model's name in requests.  [default: the folder's]",
    ),
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
        help="How requests are routed; `kv` sends a prompt to the worker that has its prefix cached.",
    ),
    click.option(
        "--migrations",
        type=click.IntRange(0),
        default=3,
        show_default=True,
        help="How often a request may move to another worker if its worker dies.",
    ),
    click.option(
        "--hang-timeout",
        "hang_timeout_s",
        type=click.IntRange(1),
        default=120,
        show_default=True,
        metavar="SECONDS",
        help="Time limit of a step, after which its worker is restarted.",
    ),
    click.option(
        "--body-mib", type=click.IntRange(1), help="Largest request body, in MiB.  [default: 4, with images 64]"
    ),
    click.option(
        "--api-key",
        metavar="KEY",
        envvar=API_KEY,
        show_envvar=True,
        help="Answer only requests with this key, except probes and metrics.",
    ),
    click.option(
        "--tool-call-parser",
        metavar="[MODEL=]NAME",
        multiple=True,
        help="Dynamo's parser of tool calls, e.g. `hermes`.",
    ),
    click.option(
        "--reasoning-parser",
        metavar="[MODEL=]NAME",
        multiple=True,
        help="Dynamo's parser of reasoning, e.g. `qwen3`.",
    ),
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
    """Add the options of a language model's bundle to a command."""
    return grouped("A bundle of a language model", *_BUNDLE)(serving_options("serve")(command))


def repository_options(command: Command) -> Command:
    """Add the options of Triton's model repository to a command."""
    return grouped("A model repository", *_REPOSITORY)(command)


Options = dict[str, Any]
EPILOG = """\b
Examples:
  trtkit serve bundles/llama
  trtkit serve Qwen/Qwen3-0.6B --yes
  trtkit serve bundles/llama --replicas 2 --http-port 9000
  trtkit serve bundles/llama bundles/qwen --name qwen=chat
  TRTKIT_API_KEY=secret trtkit serve bundles/llama --log-format json
  trtkit serve models
  trtkit serve models --http-port 9000 --grpc-port 9001 --metrics-port 9002
  trtkit serve models --model-control-mode explicit --load resnet50
  trtkit serve models --server /opt/tritonserver/bin/tritonserver --quiet

\b
Triton's server is the first of: --server, TRTKIT_TRITON_SERVER,
`tritonserver` on PATH, NVIDIA's container, nvidia-pytriton, and the folder
`triton-server` of the environment.
Ctrl-C and SIGTERM stop it. Port 0 picks a free port.
Exit codes: 0 stopped, 1 failed, or the server or a Python model's process
died (restart it), 2 wrong usage. A worker that dies or hangs is started
again."""

_OF_BUNDLES = [
    "name", "api_key", "replicas", "prefill_workers", "prefill_bundle", "router", "migrations", "body_mib",
    "hang_timeout_s", "tool_call_parser", "reasoning_parser", *serving_fields("serve"),
]  # fmt: skip
_OF_ONE_MODEL = ("prefill_workers", "prefill_bundle")
_OF_EACH_MODEL = ("name", "lora", "tool_call_parser", "reasoning_parser")
_OF_REPOSITORIES = ["server", "grpc_port", "metrics_port", "control_mode", "load", "allow_undeployed"]


@click.command(cls=GroupedCommand, epilog=EPILOG)
@click.argument("paths", metavar="MODEL...|REPOSITORY", nargs=-1, required=True, shell_complete=completions.folders)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--http-port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@bundle_options
@repository_options
@yes_option
@click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    default="text",
    show_default=True,
    help="Format of the log on stderr: text, or a JSON object per line.",
)
@json_option
@quiet_option
@click.pass_context
def command(
    context: click.Context, /, paths: tuple[str, ...], log_format: LogFormat, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Serve language models with an OpenAI-compatible API, or a model repository with Triton.

    MODEL is the bundle of a language model, or any model that `trtkit build` takes, which is built into bundles/NAME
    first if needed. NVIDIA Dynamo's frontend and --replicas workers serve it. With several models, each has its own
    workers, and requests select one by `model`; --name, --lora, --tool-call-parser and --reasoning-parser are then
    repeatable and take MODEL=VALUE, where MODEL is a path as given or the name of its folder. Once the server has
    answered test prompts, its URL and an example request are printed. A REPOSITORY, as `trtkit deploy` writes it, is
    checked and served by a local Triton server. Both listen on the loopback address by default. Logs go to stderr;
    --quiet limits them to warnings and errors. --json prints one line once the models are loaded.
    """
    from trtkit.bundle.bundle import is_bundle
    from trtkit.config.load import missing_fix

    # A repository's folder may be named like a shipped config.
    repositories = [path for path in paths if any(Path(path).glob("*/config.pbtxt")) and not is_bundle(Path(path))]
    is_one = not repositories and (len(paths) > 1 or is_bundle(Path(paths[0])) or is_model(paths[0]))
    if repositories and len(paths) > 1:
        raise click.UsageError(f"{repositories[0]} is a model repository, which is served alone")
    if log_format == "json" and is_verbose():
        raise click.UsageError("--log-format json and --verbose cannot be used together")
    log_as(log_format)
    signal.signal(signal.SIGTERM, _interrupt)
    with errors_in_log():
        if not is_one and not Path(paths[0]).exists():
            raise DeployError("no such bundle, model or repository", paths[0], missing_fix(paths[0]))
        _check_options(context, _OF_REPOSITORIES if is_one else _OF_BUNDLES, "a repository" if is_one else "a bundle")
        server_options = {
            name: options[name] for name in ("host", "http_port", *(_OF_BUNDLES if is_one else _OF_REPOSITORIES))
        }
        if is_one:
            serve_bundles(paths, server_options, as_json=as_json, quiet=quiet)
        else:
            _serve_repository(Path(paths[0]), server_options, as_json=as_json, quiet=quiet)


def _check_options(context: click.Context, names: Sequence[str], of: str) -> None:
    """Raise UsageError for an option that applies only to the other kind of server."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[0]} is for {of}")
        if parameter.name in names and source is click.core.ParameterSource.ENVIRONMENT:
            raise click.UsageError(f"{parameter.opts[0]} is for {of}: unset {API_KEY}, or put a proxy before Triton")


def _serve_repository(repository: Path, options: Options, *, as_json: bool, quiet: bool) -> None:
    """Serve with Triton until Ctrl-C or SIGTERM."""
    from trtkit.deployment.triton.extra import require_extra

    require_extra()
    from trtkit.deployment.triton.local_server import LocalServer

    load = options.pop("load")
    if load and options["control_mode"] == "none":
        raise click.UsageError("--load needs --model-control-mode explicit")
    files = _find_server(options["server"], repository)
    serve_options = _options(repository, files, load, options)
    try:
        with LocalServer(files, serve_options, _log_to_stderr(quiet=quiet)) as server:
            _serve(server, as_json=as_json)
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(0)


def _interrupt(_signal: int, _frame: object) -> None:
    """Treat SIGTERM like Ctrl-C: either stops a server."""
    raise KeyboardInterrupt


def _find_server(path: str | None, repository: Path) -> ServerFiles:
    """Return the server to start; if there is none, the error names the container that serves the repository."""
    from trtkit.deployment.triton.elsewhere import container_facts, docker_command
    from trtkit.deployment.triton.repository_check import read_repository
    from trtkit.deployment.triton.server_files import find_server

    try:
        return find_server(path)
    except DeployError as error:
        if error.where:
            raise  # the user named a server
        line = docker_command(container_facts(read_repository(repository)), repository)
        fix = f"{error.fix} puts one into this environment; or serve it from NVIDIA's container:\n  {line}"
        raise DeployError(error.what, fix=fix) from None


def _options(repository: Path, files: ServerFiles, load: tuple[str, ...], options: Options) -> ServeOptions:
    """Check the repository and return the serving options. Raises ProblemsError, DeployError."""
    from trtkit.deployment.triton.local_server import ServeOptions
    from trtkit.deployment.triton.repository_check import check_repository, needed_flags, remove_bytecode

    mode = options["control_mode"]
    endpoints = _endpoints(options)
    if mode == "explicit" and not endpoints.is_loopback:
        what = "with `--model-control-mode explicit`, anyone who can reach the server can load code into it"
        raise DeployError(what, f"--host {endpoints.host}", "remove one of the two options")
    remove_bytecode(repository)
    models = check_repository(repository, files, load, allow_undeployed=options["allow_undeployed"])
    return ServeOptions(repository, endpoints, mode, load, needed_flags(models, files))


def _endpoints(options: Options) -> Endpoints:
    from trtkit.deployment.triton.endpoints import Endpoints, free_ports

    free = free_ports()
    return Endpoints(
        options["host"],
        options["http_port"] or free.http_port,
        options["grpc_port"] or free.grpc_port,
        options["metrics_port"] or free.metrics_port,
    )


def _log_to_stderr(*, quiet: bool) -> Callable[[str], None]:
    from trtkit.deployment.triton.local_server import is_noise, level

    show = server_log(lambda line: level(line) == "I", quiet=quiet)
    return lambda line: None if is_noise(line) else show("", line)


def _serve(server: LocalServer, *, as_json: bool) -> None:
    """Wait for the models to load, print the result, and wait for the end. Raises DeployError if the server exits."""
    from trtkit.deployment.triton.compatibility import newer_server, server_warning
    from trtkit.deployment.triton.endpoints import server_version

    endpoints, files = server.options.endpoints, server.files
    say(f"starting {files.binary} ({files.origin})")
    if files.warning is not None:
        warn(f"warning: {files.warning}")
    if not endpoints.is_loopback:
        warn(f"warning: other machines can reach {endpoints.host}; Triton does not authenticate clients")
    states = server.wait_ready()
    version = server_version(endpoints)
    if old := server_warning(version) or newer_server(version):
        say(f"note: {old}") if endpoints.is_loopback else warn(f"warning: {old}")
    if as_json:
        click.echo(json.dumps(_report(server, version, states)))
    else:
        _print(endpoints, version, states)
    if states and not any(state.is_ready for state in states):
        raise DeployError("no model could be loaded", str(server.options.repository), "see the reasons above")
    server.wait()
    raise server.death()


def _report(server: LocalServer, version: str, states: list[ModelState]) -> dict[str, object]:
    ends = server.options.endpoints
    return {
        "server": {"binary": str(server.files.binary), "version": version, "pid": server.pid},
        "http": ends.http,
        "grpc": ends.grpc,
        "metrics": ends.metrics,
        "models": [vars(state) for state in states],
    }


def _print(endpoints: Endpoints, version: str, states: list[ModelState]) -> None:
    for state in states:
        words = "ready" if state.is_ready else f"failed: {' '.join(state.reason.split())}"
        echo(f"{state.name}  version {state.version}  {words}")
    echo(f"Triton {version} at {endpoints.http}, {endpoints.grpc}, metrics {endpoints.metrics}")
    echo("Ctrl-C stops it")


def serve_bundles(bundles: Sequence[str], options: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Serve until Ctrl-C or SIGTERM. bundles: paths, or names of models to build first.

    Raises DeployError, BundleError, MissingPackageError.
    """
    from trtkit.deployment.dynamo.extra import require_dynamo, require_nixl
    from trtkit.llm.distributed.world import launched_rank

    if launched_rank():
        _join(Path(bundles[0]))
    if len(bundles) > 1 and (alone := [name for name in _OF_ONE_MODEL if options[name]]):
        raise click.UsageError(f"--{alone[0].replace('_', '-')} is for one model: serve it alone")
    require_dynamo()
    if options["prefill_workers"]:
        require_nixl()
    elif options["prefill_bundle"]:
        raise click.UsageError("--prefill-bundle needs --prefill-workers")
    from trtkit.bundle.bundle import open_bundle
    from trtkit.deployment.dynamo.fleet import LocalFleet
    from trtkit.deployment.dynamo.model_folder import read_model
    from trtkit.deployment.dynamo.options import DynamoOptions
    from trtkit.deployment.dynamo.prefill_bundle import check_prefill_bundle
    from trtkit.deployment.process import free_ports
    from trtkit.llm.adapters import check_adapters
    from trtkit.llm.speculator_tokens import speculator_tokens
    from trtkit.runtime.weight_budget import weight_budget_bytes
    from trtkit.serving_options import ServingOptions

    options_of_each = _of_each_model(bundles, options)
    values, options = split_options({name: value for name, value in options.items() if name not in _OF_EACH_MODEL})
    serving = ServingOptions(**values)
    models = [
        replace(read_model(Path(local_bundle(bundle, interface="tokens")), own_options.pop("name")), **own_options)
        for bundle, own_options in zip(bundles, options_of_each, strict=True)
    ]
    if options["prefill_bundle"]:
        check_prefill_bundle(open_bundle(options["prefill_bundle"]), open_bundle(models[0].path))
    with faults_by_flag():
        for model in models:
            opened = open_bundle(model.path)
            weight_budget_bytes(opened, serving.weight_budget_gib)
            speculator_tokens(opened, serving.speculate)
            check_adapters(opened, model.lora or {}, model.name)
    if options["api_key"] == "":
        raise click.UsageError(f"--api-key is empty (maybe by the variable {API_KEY})")
    port = options.pop("http_port") or free_ports(1)[0]
    fleet_options = DynamoOptions(port=port, serving=serving, **options)
    show = server_log(lambda line: " INFO " in line, quiet=quiet)
    try:
        with LocalFleet(models, fleet_options, show) as fleet:
            _warn(fleet)
            fleet.wait_ready()
            _print_fleet(fleet, as_json=as_json)
            fleet.watch()
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(0)


def _of_each_model(paths: Sequence[str], options: Options) -> list[Options]:
    """Return the options of each model. Raises UsageError."""
    options_of_each: list[Options] = [{} for _ in paths]
    for option in _OF_EACH_MODEL:
        flag = f"--{option.replace('_', '-')}"
        for path, own_options, values in zip(
            paths, options_of_each, _by_model(paths, flag, options[option]), strict=True
        ):
            if option == "lora":
                own_options[option] = folders_by_name(values, flag) or None
            elif len(values) > 1:
                raise click.UsageError(f"{flag} has {len(values)} values for {path}: give one")
            else:
                own_options[option] = values[0] if values else None
    return options_of_each


def _by_model(paths: Sequence[str], flag: str, values: Sequence[str]) -> list[list[str]]:
    """Return an option's values per model: unchanged for one model, else from MODEL=VALUE."""
    if len(paths) == 1:
        return [list(values)]
    from trtkit.config.load import model_name

    names = [model_name(Path(path).resolve()) for path in paths]
    numbers = {name: number for number, name in enumerate(names) if names.count(name) == 1}
    numbers |= {path: number for number, path in enumerate(paths)}
    by_model: list[list[str]] = [[] for _ in paths]
    for value in values:
        key = max((key for key in numbers if value.startswith(f"{key}=")), key=len, default=None)
        if key is None:
            models = f"MODEL is one of {', '.join(numbers)}"
            raise click.UsageError(f"{flag} {value}: with several models, write MODEL=VALUE; {models}")
        by_model[numbers[key]].append(value.removeprefix(f"{key}="))
    return by_model


def _join(path: Path) -> NoReturn:
    """Run as a rank of the model until rank 0, which serves, exits."""
    from trtkit.bundle.bundle import open_bundle
    from trtkit.llm.execution.open import open_execution

    open_execution(open_bundle(path))
    sys.exit(0)


def _warn(fleet: LocalFleet) -> None:
    from trtkit.deployment.process import is_loopback

    options = fleet.options
    has_key = options.api_key is not None
    count = options.replicas * len(fleet.models)
    workers = f"{count} worker{'s' if count > 1 else ''}"
    if options.prefill_workers:
        workers += f", {options.prefill_workers} more for prompts,"
    say(f"starting NVIDIA Dynamo's frontend and {workers} for {', '.join(str(model.path) for model in fleet.models)}")
    if not is_loopback(options.host):
        risk = "keys and answers are not encrypted" if has_key else "Dynamo does not authenticate clients: --api-key"
        warn(f"warning: other machines can reach {options.host}; {risk}")
    for model in fleet.models:
        if not model.has_chat:
            warn(f"note: the tokenizer of {model.name} has no chat template, so there are completions but no chat")


def _print_fleet(fleet: LocalFleet, *, as_json: bool) -> None:
    """Print the models' addresses and an example request."""
    options = fleet.options
    if as_json:
        pids = {"frontend": fleet.frontend_pid, "workers": [member.process.pid for member in fleet.workers]}
        ports = [member.health_port for member in fleet.workers]
        models = [{"model": model.name, "chat": model.has_chat} for model in fleet.models]
        line = {"url": options.url, **models[0], "models": models, "pids": pids}
        echo(json.dumps({**line, "worker_ports": ports, "admin_token": fleet.admin_token}))
        return
    echo(f"{', '.join(model.name for model in fleet.models)} at {options.url}")
    echo(_curl(options, fleet.models[0]))
    echo("Ctrl-C stops it")


def _curl(options: DynamoOptions, model: ServableBundle) -> str:
    question = "Why is the sky blue?"
    body = {"messages": [{"role": "user", "content": question}]} if model.has_chat else {"prompt": question}
    path = "chat/completions" if model.has_chat else "completions"
    data = json.dumps({"model": model.name, **body, "max_tokens": 64})
    key = "" if options.api_key is None else f' -H "Authorization: Bearer ${API_KEY}"'
    return f"curl {options.url}/{path}{key} -H 'Content-Type: application/json' -d '{data}'"


def log_as(form: LogFormat) -> None:
    """Make the current command log in a form."""
    click.get_current_context().meta[JSON_LOG] = form == "json"


def server_log(is_information: Callable[[str], bool], *, quiet: bool) -> Callable[[str, str], None]:
    """Return a function that shows a process's line.

    With --quiet it shows warnings only; with --verbose none, since the log on stderr has them all.
    """
    log, is_shown, as_json = logging.getLogger("trtkit.server"), not is_verbose(), is_json()

    def show(process: str, line: str) -> None:
        text = f"{process}: {line}" if process else line
        log.info("%s", text)
        if is_shown and not (quiet and is_information(line)):
            echo(record(process or "triton", line) if as_json else text, err=True)

    return show


@contextmanager
def errors_in_log() -> Iterator[None]:
    """Log the error that ends the command if the log is JSON: a collector reads no other lines."""
    try:
        yield
    except TrtkitError as error:
        if not is_json():
            raise
        echo(record("trtkit", str(error), "ERROR"), err=True)
        raise SystemExit(error.exit_code) from None
