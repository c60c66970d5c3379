"""`trtkit doctor`."""

import contextlib
import importlib
import importlib.machinery
import io
import json
import platform
import sys
from dataclasses import asdict, dataclass

import click

from trtkit.cli.options import json_option, run_options
from trtkit.deployment.dynamo.extra import install_command
from trtkit.extras import install
from trtkit.jobs.events import Phase

EPILOG = """\b
Examples:
  trtkit doctor
  trtkit doctor --deep
  trtkit doctor --json"""


@dataclass(frozen=True)
class MachineCheck:
    """A component of this machine. description: its version or kind, empty if missing. fix: how to install it."""

    name: str
    description: str
    cost: str = ""
    fix: str = ""


@dataclass(frozen=True)
class UseCase:
    """A use of trtkit. problem: why it does not work here, empty if it does. fix: how to make it work."""

    task: str
    problem: str
    fix: str


# A task, the modules that it imports, and the extras that install them.
_TASKS = (
    ("build ONNX models", ("onnx", "onnxruntime", "onnxslim"), ("onnx",)),
    ("build PyTorch models", ("torch", "onnxscript", "transformers"), ("torch",)),
    ("build ONNX models in fp16, bf16 or int8", ("onnxruntime", "modelopt.onnx.autocast"), ("quantize",)),
    ("verify and benchmark", ("torch", "onnxruntime", "PIL", "scipy", "polygraphy"), ("verify",)),
    ("language models", ("torch", "transformers", "tokenizers", "gguf", "jinja2", "llguidance"), ("llm",)),
    ("quantize language models", ("transformers", "modelopt.torch.quantization"), ("llm", "quantize")),
    ("compile custom op kernels", ("torch", "triton"), ("kernels",)),
    ("serve with an OpenAI-compatible API", ("dynamo.frontend", "msgspec", "prometheus_client", "zmq"), ("dynamo",)),
    ("deploy to Triton", ("tritonclient.grpc", "google.protobuf", "PIL", "scipy"), ("triton",)),
)
_BUILDS = {"build ONNX models", "language models"}


@click.command(epilog=EPILOG)
@click.option("--deep", is_flag=True, help="Import the packages, which also finds broken ones; takes longer.")
@json_option
@run_options
def command(deep: bool, as_json: bool) -> None:
    """Check what this machine can do and what is missing.

    Looks for the packages that each task needs; --deep imports them. Exits with 0 if ONNX models or language models
    can be built.
    """
    from trtkit.cli.progress import show_progress

    with show_progress(quiet=not sys.stderr.isatty()) as runner, contextlib.redirect_stderr(io.StringIO()):
        runner.report(Phase("checking what each task needs"))
        backends = _backends()
        checks = [
            MachineCheck("Python", f"{platform.python_version()} ({sys.executable})"),
            *backends,
            *_gpus(),
            _server(),
        ]
        tasks = [_task(*row, is_deep=deep) for row in _TASKS]
    if not any(check.description for check in backends):
        no_backend = "no TensorRT library could be loaded"
        tasks = [UseCase(task.task, no_backend, backends[0].fix) if task.task in _BUILDS else task for task in tasks]
    is_ready = any(not task.problem for task in tasks if task.task in _BUILDS)
    if as_json:
        rows = {"checks": [asdict(check) for check in checks], "tasks": [asdict(task) for task in tasks]}
        click.echo(json.dumps({"ready": is_ready, **rows}))
    else:
        _render(checks, tasks, is_ready=is_ready)
    sys.exit(0 if is_ready else 1)


def _task(task: str, modules: tuple[str, ...], extras: tuple[str, ...], *, is_deep: bool) -> UseCase:
    """Look for the modules of `task`, or import them if `is_deep`; the first that fails is its problem."""
    for module in modules:
        try:
            importlib.import_module(module) if is_deep else _look_for(module)
        except Exception as error:  # a broken library can raise anything
            fix = install_command() if "dynamo" in extras else install(*extras)
            return UseCase(task, f"`{module}`: {str(error).partition(chr(10))[0]}", fix)
    return UseCase(task, "", "")


def _look_for(module: str) -> None:
    """Raise ImportError if a module is not installed. Imports nothing, not even its parent packages."""
    name, path = "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            raise ImportError(f"No module named '{name}'")
        path = spec.submodule_search_locations


def _backends() -> list[MachineCheck]:
    """Load both TensorRT libraries, first the one that `auto` chooses."""
    from trtkit.backends import choose_backend, load_backend
    from trtkit.errors import BackendError

    costs = {"tensorrt_rtx": "cannot build without a GPU", "tensorrt": "cannot build for data-center GPUs"}
    default, checks = choose_backend(), []
    for name in sorted(costs, key=lambda name: name != default):
        try:
            checks.append(MachineCheck(name, f"{load_backend(name).version}{' (default here)' * (name == default)}"))
        except BackendError as error:
            checks.append(MachineCheck(name, "", costs[name], error.fix))
    return checks


def _gpus() -> list[MachineCheck]:
    from trtkit.backends import choose_backend, driver_version, list_gpus, refused_gpus

    default, present = choose_backend(), list_gpus()
    gpus = ", ".join(f"{gpu.name} (sm{gpu.compute_capability}, {gpu.memory_mib} MiB)" for gpu in present)
    if refusal := refused_gpus(default, present):
        gpus += f": {refusal}"
    cost = "engines can be built and verified, but not run"
    return [
        MachineCheck("CUDA driver", driver_version() or "", cost, "install NVIDIA's driver"),
        MachineCheck("GPU", gpus, cost, "run on a machine with an NVIDIA GPU"),
    ]


def _server() -> MachineCheck:
    """Look for Triton's server."""
    from trtkit.deployment.triton.server_files import find_server
    from trtkit.errors import DeployError

    try:
        return MachineCheck("tritonserver", str(find_server().binary))
    except DeployError as error:
        fix = f"use NVIDIA's Triton container, or {error.fix}"
        return MachineCheck("tritonserver", "", "models cannot be served from this machine", fix)


def _render(checks: list[MachineCheck], tasks: list[UseCase], *, is_ready: bool) -> None:
    """Print what is present, what is missing and how to install it, then what works."""
    from trtkit.cli.tables import console, pairs, show

    here, missing, works = pairs(), pairs("missing"), pairs("available tasks")
    for check in checks:
        if check.description:
            here.add_row(check.name, check.description)
        else:
            missing.add_row(check.name, f"{check.cost}; {check.fix}")
    for task in tasks:
        works.add_row(task.task, f"no: {task.problem}; {task.fix}" if task.problem else "yes")
    show(table for table in (here, missing, works) if table.row_count)
    text = "engines can be built on this machine" if is_ready else "no engine can be built on this machine yet"
    console().print(f"\n{text}", style="green" if is_ready else "red")
