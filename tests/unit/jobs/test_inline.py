"""A job in this process sees what it would see in a child, and leaves no trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from tests.unit.jobs.toys import IMPORT, REFUSE, SAY, TooManyWordsError, Words
from trtkit.jobs.runner import InlineRunner

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.jobs.events import Event


def test_its_log_holds_what_it_prints_and_nothing_else_does(capfd: pytest.CaptureFixture[str]) -> None:
    def show(event: Event) -> None:
        print("shown", event)

    found = InlineRunner(show).run(SAY, Words(("a", "b")))
    assert found == Words(("a", "a below", "b", "b below", ""))
    print("after")
    assert capfd.readouterr() == ("shown Phase(name='a')\nshown Phase(name='b')\nafter\n", "")


def test_errors_of_any_module_come_back_as_they_are() -> None:
    with pytest.raises(TooManyWordsError) as caught:
        InlineRunner().run(REFUSE, Words(("a",)))
    assert (caught.value.what, caught.value.where, caught.value.fix) == ("1 words", "here", "use fewer")


def test_a_users_module_is_imported_anew_by_each_job(tmp_path: Path) -> None:
    before = list(sys.path)
    for value in ("first", "second"):
        folder = tmp_path / value
        folder.mkdir()
        (folder / "theirs.py").write_text(f"VALUE = {value!r}\n")
        assert InlineRunner().run(IMPORT, Words((), folder)).words == (value,)
    assert sys.path == before
    assert "theirs" not in sys.modules


def test_torchs_random_state_is_as_before() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    InlineRunner().run(SAY, Words(("a",)))
    assert torch.equal(torch.rand(2), wanted)
