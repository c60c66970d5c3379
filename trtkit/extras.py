"""Optional packages: the extra that brings a module, and the command that installs it here."""

import json
import shlex
from urllib.parse import unquote, urlparse

from trtkit.errors import MissingPackageError

# Module to the extras of trtkit that bring it and what it is used with.
EXTRAS = {
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxslim": "onnx",
    "PIL": "verify",
    "torch": "torch,verify",
    "onnxscript": "torch",
    "transformers": "torch",
    "modelopt": "quantize",
    "lief": "quantize",
    "cppimport": "quantize",
    "requests": "quantize",
    "onnx_graphsurgeon": "quantize",
    "onnxconverter_common": "quantize",
    "polygraphy": "verify",
    "scipy": "verify",
    "tokenizers": "llm",
    "gguf": "llm",
    "jinja2": "llm",
    "llguidance": "llm",
    "av": "video",
    "pycocotools": "eval",
    "rapidfuzz": "eval",
    "lm_eval": "lm-eval",
    "triton": "kernels",
    "tritonclient": "triton",
    "google": "triton",
    "msgspec": "dynamo",
    "prometheus_client": "dynamo",
    "uvloop": "dynamo",
    "zmq": "dynamo",
    "nixl": "nixl",
    "altair": "report",
    "markupsafe": "report",
    "vl_convert": "report",
}
# Names of distributions that differ from the module's.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "prometheus_client": "prometheus-client",
    "zmq": "pyzmq",
    "lm_eval": "lm-eval",
    "modelopt": "nvidia-modelopt",
    "google": "protobuf",
    "vl_convert": "vl-convert-python",
}


def missing_package(error: ImportError) -> MissingPackageError | None:
    """Turn a failed import of an optional package into an error with its fix; None if trtkit has no extra for it.

    A library may raise an ImportError of its own for a package that it misses.
    """
    missing: BaseException | None = error
    while missing is not None and not isinstance(missing, ModuleNotFoundError):
        missing = missing.__cause__ or missing.__context__
    module = "" if missing is None else (missing.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    distribution = _DISTRIBUTIONS.get(module, module)
    return MissingPackageError(f"this needs `{distribution}`, which is not installed", fix=install(EXTRAS[module]))


def install(*extras: str) -> str:
    """Return the command that adds `extras` to trtkit as it was installed: from a clone or from a package."""
    names = ",".join(extras)
    clone = _clone()
    if clone:
        return f"pip install -e {shlex.quote(f'{clone}[{names}]')}"
    return f"pip install 'trtkit[{names}]'"


def _clone() -> str:
    """Return the folder that trtkit was installed from; empty if it was not installed from a folder."""
    import importlib.metadata  # half of the time that `trtkit --help` would take

    try:
        text = importlib.metadata.distribution("trtkit").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        text = None
    origin = json.loads(text) if text else {}
    return unquote(urlparse(origin["url"]).path) if "dir_info" in origin else ""
