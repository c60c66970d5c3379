"""Every job of the tree names a function that is there, of its own package, and that takes what the job says."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

import trtkit
from trtkit.jobs.job import Job, load


def declared() -> list[tuple[str, Job[object, object]]]:
    """Return every Job of the tree with the module that declares it."""
    root = Path(trtkit.__file__).parent
    jobs = []
    for path in root.rglob("*.py"):
        if re.search(r"^[A-Z_]+ = Job\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            module = importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))
            jobs += [(module.__name__, value) for value in vars(module).values() if isinstance(value, Job)]
    return jobs


JOBS = declared()


def test_all_are_found() -> None:
    assert len(JOBS) >= 11


@pytest.mark.parametrize(("module", "job"), JOBS, ids=lambda value: getattr(value, "function", ""))
def test_job_is_of_the_package_that_declares_it(module: str, job: Job[object, object]) -> None:
    assert job.function.split(".")[:2] == module.split(".")[:2]


@pytest.mark.parametrize("job", [job for _, job in JOBS], ids=lambda job: job.function)
def test_function_takes_and_gives_what_the_job_says(job: Job[object, object]) -> None:
    function = load(job.function)
    request, context = inspect.signature(function).parameters.values()
    names = vars(sys.modules[function.__module__])
    told = [names.get(str(kind), kind) for kind in (request.annotation, inspect.signature(function).return_annotation)]
    assert context.annotation == "JobContext"
    assert [getattr(kind, "__name__", kind) for kind in told] == [
        kind.__name__.replace("NoneType", "None") for kind in (job.request, job.result)
    ]


def test_no_package_names_a_function_of_another_to_run_it() -> None:
    """Strings like `trtkit.builder.prepare:prepare` stand only in the package that they name."""
    root = Path(trtkit.__file__).parent
    for path in root.rglob("jobs/*.py"):
        assert not re.search(r'"trtkit\.(?!jobs)\w+\.[\w.]+:', path.read_text(encoding="utf-8")), path
