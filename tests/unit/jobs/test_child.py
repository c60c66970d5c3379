from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from trtkit.errors import SourceError, TrtkitError
from trtkit.jobs.child import run_job

if TYPE_CHECKING:
    from pathlib import Path

Json = dict[str, Any]


def digest(source: Json) -> Json:
    config = {"name": "m", "source": source}
    return run_job("digest", {"config": config}, lambda _event: None)


def test_job_answers_and_reports_what_it_does(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("abc")
    events: list[Json] = []
    config = {"name": "m", "source": {"hf": str(tmp_path)}}
    answer = run_job("digest", {"config": config}, events.append)
    # FIPS 180-2, appendix B.1: SHA-256 of "abc".
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert answer == {"files": [{"path": f"{tmp_path}/config.json", "size_bytes": 3, "sha256": sha256}], "data": []}
    assert events == [{"event": "phase", "name": "read source"}]


def test_users_mistake_comes_back_as_the_error_that_was_raised(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        digest({"onnx": f"{tmp_path}/m.onnx"})
    assert (caught.value.what, caught.value.where) == ("no such file", f"{tmp_path}/m.onnx")


def test_our_own_mistake_comes_back_with_its_traceback() -> None:
    with pytest.raises(TrtkitError) as caught:
        run_job("digest", {}, lambda _event: None)
    assert caught.value.what == "internal error: KeyError('config')"
    assert caught.value.fix.startswith("report it with these lines:\n")
    assert "KeyError: 'config'" in caught.value.fix


def test_exception_in_the_listener_ends_the_child_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()

    def cancel(_event: Json) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_job("digest", {"config": {"name": "m", "source": {"hf": str(tmp_path)}}}, cancel)
    assert time.monotonic() - started < 10
