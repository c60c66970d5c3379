"""`trtkit doctor`."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from dataclasses import asdict, dataclass

import click

from trtkit.cli.options import json_option, run_options

EPILOG = """\b
Examples:
  trtkit doctor
  trtkit doctor --json"""


@dataclass(frozen=True)
class Check:
    """One thing looked for. found: version or description, empty where missing. needed: the default path needs it."""

    name: str
    found: str
    cost: str
    fix: str
    needed: bool = False


# Distribution, what goes without it, the extra that brings it, whether the default path needs it.
_PACKAGES = (
    ("onnx", "ONNX models cannot be read", "onnx", True),
    ("onnxslim", "constants cannot be folded", "onnx", True),
    ("torch", "no PyTorch sources, no reference executor", "torch", False),
    ("onnxscript", "no PyTorch sources", "torch", False),
    ("transformers", "no Hugging Face models", "torch", False),
    ("gguf", "no LLMs from GGUF files", "llm", False),
    ("nvidia-modelopt", "no fp16 or bf16 from ONNX", "quantize", False),
    ("polygraphy", "no Polygraphy data files or comparators", "verify", False),
)


@click.command(epilog=EPILOG)
@json_option
@run_options
def command(as_json: bool) -> None:
    """Check what this machine can do and what is missing.

    Exits 0 when the default path works: an ONNX model becomes an engine on this machine.
    """
    checks = all_checks()
    is_ready = all(check.found for check in checks if check.needed)
    if as_json:
        click.echo(json.dumps({"ready": is_ready, "checks": [asdict(check) for check in checks]}))
    else:
        _render(checks, is_ready=is_ready)
    sys.exit(0 if is_ready else 1)


def all_checks() -> list[Check]:
    """Look for everything trtkit can use."""
    packages = [
        Check(name, _version(name), cost, f"pip install 'trtkit[{extra}]'", needed)
        for name, cost, extra, needed in _PACKAGES
    ]
    return [
        Check("Python", f"{platform.python_version()} ({sys.executable})", "", ""),
        *_backends(),
        *_gpus(),
        *packages,
        _onnxruntime(),
        *_triton(),
    ]


def _backends() -> list[Check]:
    """Load both TensorRT libraries; the default path needs the one that `auto` picks."""
    from trtkit.backends import choose_backend, load_backend
    from trtkit.errors import BackendError

    costs = {
        "tensorrt_rtx": ("no engines without a GPU", "pip install 'trtkit[rtx]'"),
        "tensorrt": ("no engines for data-centre GPUs", "pip install 'trtkit[tensorrt]' on a machine with a GPU"),
    }
    default, checks = choose_backend(), []
    for name, (cost, fix) in costs.items():
        try:
            found = f"{load_backend(name).version}{' (default here)' * (name == default)}"
        except BackendError:
            found = ""
        checks.append(Check(name, found, cost, fix, needed=name == default))
    return checks


def _gpus() -> list[Check]:
    """Ask the driver for its GPUs."""
    from trtkit.backends import driver_version, list_gpus

    gpus = ", ".join(f"{gpu.name} (sm{gpu.compute_capability}, {gpu.memory_mib} MiB)" for gpu in list_gpus())
    return [
        Check(
            "CUDA driver", driver_version() or "", "engines are built and verified, not run", "install NVIDIA's driver"
        ),
        Check("GPU", gpus, "engines are built and verified, not run", "run on a machine with an NVIDIA GPU"),
    ]


def _onnxruntime() -> Check:
    """Name ONNX Runtime's version and providers."""
    fix = "pip install 'trtkit[onnx]'"
    try:
        import onnxruntime
    except ImportError:
        return Check("onnxruntime", "", "nothing to verify ONNX models against", fix)
    providers = ", ".join(name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers())
    return Check("onnxruntime", f"{onnxruntime.__version__} ({providers})", "", "")


def _triton() -> list[Check]:
    """Look for Triton's server and client."""
    from trtkit.deploy.triton.server_files import find_server
    from trtkit.errors import DeployError

    try:
        server, fix = str(find_server().binary), ""
    except DeployError as error:
        server, fix = "", f"use NVIDIA's Triton container, or {error.fix}"
    return [
        Check("tritonserver", server, "models are not served from here", fix),
        Check("tritonclient", _version("tritonclient"), "no deployment to Triton", "pip install 'trtkit[triton]'"),
    ]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _render(checks: list[Check], *, is_ready: bool) -> None:
    """Print found pieces, then missing ones with what they cost and what adds them."""
    from trtkit.cli.tables import console, pairs

    out = console()
    found, missing = pairs(), pairs("missing")
    for check in checks:
        if check.found:
            found.add_row(check.name, check.found)
        else:
            missing.add_row(check.name, f"{check.cost}; {check.fix}")
    out.print(found)
    if missing.row_count:
        out.print()
        out.print(missing)
    out.print()
    said = "the default path works" if is_ready else "the default path does not work yet"
    out.print(said, style="green" if is_ready else "red")
