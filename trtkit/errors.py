"""Errors that say what is wrong, where, and how to fix it."""

import contextlib
import difflib
import functools
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

AGAIN = "copy or download the file again"


class TrtkitError(Exception):
    """A user's mistake or a limit that was reached; shown without a traceback.

    what: the problem, with the offending value and the allowed ones, in lower case, names in backticks.
    where: file, `file:line`, node or layer; empty if there is none.
    fix: what to do about it; empty if nothing is known.
    """

    exit_code = 1

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}\nfix: {self.fix}" if self.fix else line

    def to_json(self) -> dict[str, str]:
        """Return the error as a JSON object."""
        return {"error": type(self).__name__, "what": self.what, "where": self.where, "fix": self.fix}


@dataclass(frozen=True)
class Problem:
    """One of several problems found in the same input."""

    what: str
    where: str = ""
    fix: str = ""


class ProblemsError(TrtkitError):
    """Several problems found in one pass, shown all at once."""

    def __init__(self, summary: str, problems: list[Problem], fix: str = "") -> None:
        super().__init__(summary, "", fix)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        lines = [self.what]
        for problem in self.problems:
            lines.append(f"  {problem.where}: {problem.what}" if problem.where else f"  {problem.what}")
            if problem.fix:
                lines.append(f"    fix: {problem.fix}")
        if self.fix:
            lines.append(f"fix: {self.fix}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:  # type: ignore[override]
        """Return the summary and each problem as a JSON object."""
        return {**super().to_json(), "problems": [vars(problem) for problem in self.problems]}


class ConfigError(ProblemsError):
    """A config that is not valid: unknown keys, wrong types, contradictions."""

    exit_code = 2


class BackendError(TrtkitError):
    """A TensorRT library that is missing or cannot do what is requested."""


class MissingPackageError(TrtkitError):
    """An optional package that is not installed."""


class SourceError(TrtkitError):
    """A model file or factory that cannot be read."""


class QuantizeError(TrtkitError):
    """A model that cannot be quantized: its data, its activations."""


class UnsupportedOperatorsError(ProblemsError):
    """Operators that TensorRT's parser refuses, all at once."""


class NetworkError(TrtkitError):
    """A network that TensorRT could not be made to hold."""


class BuildError(TrtkitError):
    """A build that failed inside TensorRT."""


class BundleError(TrtkitError):
    """A bundle folder that cannot be written, read or trusted."""


class BenchError(TrtkitError):
    """What cannot be measured or compared as requested."""


class DeployError(TrtkitError):
    """A bundle that cannot be served as requested, or a repository or server that is not fit for it."""


class ExecutionError(TrtkitError):
    """A network that the reference executor cannot run as requested."""


class GenerationError(TrtkitError):
    """Text that cannot be generated: a full queue, a runtime that is not there, a request that was lost."""


class OverloadedError(GenerationError):
    """A request that comes while too many wait: it may come again."""


class RequestError(GenerationError):
    """A prompt or settings that no run could serve."""

    exit_code = 2


class RankError(TrtkitError):
    """A rank of a group of processes that died, hangs, or computes something else than the others."""


class PlanError(TrtkitError):
    """A question about capacity that has no answer: an unknown GPU, lengths the model does not have."""

    exit_code = 2


class SimulationError(TrtkitError):
    """A simulation that cannot begin: traffic, step times or replicas that make no sense."""

    exit_code = 2


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean `a` or `b`? " for the names in `known` that are close, compared by what follows their last
    slash; of those that are equal there, the last counts. Empty if none is close.
    """
    by_name = {entry.rpartition("/")[2].lower(): entry for entry in known}
    word = name.rstrip("/").rpartition("/")[2].lower()
    close = difflib.get_close_matches(word, by_name, n=3)
    likeness = [difflib.SequenceMatcher(None, known_name, word).ratio() for known_name in close]
    close = [known_name for known_name, ratio in zip(close, likeness, strict=True) if ratio > likeness[0] - _FAR]
    return f"did you mean {' or '.join(f'`{by_name[name]}`' for name in close)}? " if close else ""


_FAR = 0.15
"""How much less alike than the nearest name, by difflib's ratio, a name is that is left out."""
_FEW = 8
"""Names that an error lists; of more, it says what shows them all."""


def choices(name: str, known: Iterable[str], shown_by: str) -> str:
    """Return what to write instead of an unknown name: close names, then all of them if they are few.

    shown_by: the command that shows them all, if they are many; empty if none does.
    """
    names = list(known)
    all_names = f"known: {', '.join(names)}" if len(names) <= _FEW or not shown_by else f"all: `{shown_by}`"
    return f"{did_you_mean(name, names)}{all_names}"


DATA_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, struct.error)
"""What Python raises on data of wrong types and sizes."""


@contextlib.contextmanager
def reading(where: str, fix: str = AGAIN, kind: type[TrtkitError] = SourceError) -> Iterator[None]:
    """Turn what Python raises on data of wrong types and sizes into an error of `kind`: the file is wrong, not trtkit.

    Goes once around each reader of files that are not trusted. Memory that runs out stays what it is.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"cannot be read: {(error.strerror or str(error)).lower()}", where, fix) from error
    except DATA_ERRORS as error:
        what = str(error).strip().splitlines()
        raise kind(f"damaged: {type(error).__name__}: {what[0][:200] if what else ''}", where, fix) from error


def reader(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Put `reading` around a function whose first argument is the file or folder that it reads."""

    @functools.wraps(function)
    def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with reading(str(args[0])):
            return function(*args, **kwargs)

    return guarded
