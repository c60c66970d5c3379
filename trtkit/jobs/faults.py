"""Convert exceptions of jobs to user errors, and errors to and from JSON."""

import errno
import importlib
import traceback
from typing import Any

from trtkit.errors import BundleError, Problem, ProblemsError, TrtkitError
from trtkit.extras import missing_package
from trtkit.jobs.trt_log import last_lines

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


def user_error(error: Exception, folder: str = "") -> TrtkitError | None:
    """Return the user error for `error`; None if it is a bug in trtkit.

    folder: where the job writes, for a full disk if the exception names no file.
    """
    if isinstance(error, TrtkitError):
        return error
    if isinstance(error, ImportError):
        return missing_package(error)
    if isinstance(error, OSError):
        what = f"cannot write or read: {(error.strerror or str(error)).lower()}"
        fix = "free some space, or choose another `--output`" if error.errno in _NO_SPACE else ""
        return BundleError(what, str(error.filename or folder), fix)
    return None


def internal_error(error: Exception, job: str, log: str) -> TrtkitError:
    """Return a bug in trtkit as an error to report. log: the job's output."""
    lines = last_lines(log + "".join(traceback.format_exception(error)))
    return TrtkitError(f"internal error: {error!r}", f"job {job}", f"report it with these lines:\n{lines}")


def error_to_json(error: TrtkitError) -> dict[str, Any]:
    """Return the error as a JSON object that includes its class."""
    kind = type(error)
    return {**error.to_json(), "type": f"{kind.__module__}:{kind.__qualname__}"}


def error_from_json(data: dict[str, Any]) -> TrtkitError:
    """Return the error that `error_to_json` wrote. Raises TypeError if its class is not a TrtkitError."""
    module, _, name = data["type"].partition(":")
    kind: Any = importlib.import_module(module)
    for part in name.split("."):
        kind = getattr(kind, part)
    if not (isinstance(kind, type) and issubclass(kind, TrtkitError)):
        raise TypeError(f"`{data['type']}` is not a TrtkitError")
    if issubclass(kind, ProblemsError):
        problems = [Problem(**problem) for problem in data["problems"]]
        return kind(data["what"], problems, data["fix"])
    return kind(data["what"], data["where"], data["fix"])
