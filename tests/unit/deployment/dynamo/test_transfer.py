"""Caches travel between two processes by NIXL; what was tampered with, taken back or left behind is refused."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("nixl._api")

from tests.unit.deployment.dynamo import lender as lending
from trtkit.deployment.dynamo.disaggregation import Borrower
from trtkit.errors import ExecutionError
from trtkit.llm.execution import CacheForm
from trtkit.llm.execution.saved import CacheArray

if TYPE_CHECKING:
    from collections.abc import Iterator

IDS = list(range(40))
ARRAYS = (CacheArray("past_key_0", "float16", 2, 8), CacheArray("past_value_0", "float16", 2, 8))


def form(tokens: int) -> CacheForm:
    return CacheForm("the model", tokens, ARRAYS)


class Other:
    """A lender in another process."""

    def __init__(self, most_bytes: int, keep_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self.process = context.Process(target=lending.serve, args=(end, most_bytes, keep_s), daemon=True)
        self.process.start()
        end.close()
        assert self._pipe.recv() == "ready"

    def lend(self, tokens: int = 30, fill: int = 7, ids: list[int] = IDS) -> Any:
        self._pipe.send((ids, form(tokens), fill))
        return self._pipe.recv()

    def count(self) -> int:
        self._pipe.send(None)
        return int(self._pipe.recv())

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def lender(most_bytes: int = 1 << 20, keep_s: float = 60) -> Iterator[Other]:
    other = Other(most_bytes, keep_s)
    try:
        yield other
    finally:
        other.kill()


@pytest.fixture(scope="module")
def shared() -> Iterator[Other]:
    with lender() as other:
        yield other


@pytest.fixture(scope="module")
def borrower() -> Borrower:
    return Borrower(limit_s=10)


def wait_for(other: Other, count: int) -> None:
    """Wait until as many loans are open: a note takes its time."""
    end = time.monotonic() + 10
    while other.count() != count:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_was_lent_is_read_and_given_back(shared: Other, borrower: Borrower) -> None:
    first, second = shared.lend(30, 7), shared.lend(20, 9)
    assert shared.count() == 2
    for loan, tokens, fill in ((second, 20, 9), (first, 30, 7)):
        saved = borrower.read(loan, IDS, form)
        assert saved.form == form(tokens)
        assert saved.data.tolist() == [fill] * form(tokens).size_bytes
    wait_for(shared, 0)
    with pytest.raises(ExecutionError, match="the bytes are not those that were lent"):
        borrower.read(first, IDS, form)


def changed(loan: Any, **changes: Any) -> Any:
    copy = deepcopy(loan)
    for name, value in changes.items():
        (copy["form"] if name in {"tokens", "model", "arrays"} else copy)[name] = value
    return copy


def test_numbers_that_were_tampered_with_are_refused(shared: Other, borrower: Borrower) -> None:
    loan, other = shared.lend(30, 7), shared.lend(30, 9)
    tampered: list[tuple[dict[str, Any], str]] = [
        ({"tokens": 29}, "the bytes are not those that were lent"),
        ({"tokens": 41}, "41 cached tokens are lent for a prompt of 40"),
        ({"tokens": 0}, "0 cached tokens are lent for a prompt of 40"),
        ({"tokens": -5}, "-5 cached tokens are lent for a prompt of 40"),
        ({"tokens": 10**9}, "1000000000 cached tokens are lent"),
        ({"model": "another"}, "is of model `another`"),
        ({"nonce": other["nonce"]}, "the bytes are not those that were lent"),
        ({"address": other["address"]}, "the bytes are not those that were lent"),
        ({"address": loan["address"] + 1}, "the bytes are not those that were lent"),
        ({"address": 4096}, "NOT_FOUND"),
        ({"address": -1}, ""),
        ({"address": "here"}, ""),
        ({"agent": "bm90aGluZw=="}, ""),
        ({"agent": "%"}, ""),
        ({"arrays": loan["form"]["arrays"][:1]}, "the saved sequence has 1 caches, the model 2"),
        ({"arrays": [{}]}, ""),
    ]
    for changes, text in tampered:
        with pytest.raises(Exception, match=text):
            borrower.read(changed(loan, **changes), IDS, form)
    for data in (None, [], {}, {"form": 3}):
        with pytest.raises(TypeError):
            borrower.read(data, IDS, form)
    with pytest.raises(ExecutionError, match="the bytes are not those that were lent"):
        borrower.read(loan, [1, *IDS[1:]], form)
    assert borrower.read(loan, IDS, form).data.tolist() == [7] * form(30).size_bytes
    assert borrower.read(other, IDS, form).data.tolist() == [9] * form(30).size_bytes
    wait_for(shared, 0)


def test_memory_is_bounded_and_loans_end(borrower: Borrower) -> None:
    with lender(3 * (form(30).size_bytes + 64), keep_s=2) as other:
        loans = [other.lend(30, fill) for fill in range(4)]
        assert loans[3] is None
        assert other.lend(1000) is None
        borrower.read(loans[1], IDS, form)
        wait_for(other, 2)
        again = other.lend(25, 5)
        assert again["address"] == loans[1]["address"]
        with pytest.raises(ExecutionError, match="the bytes are not those that were lent"):
            borrower.read(loans[1], IDS, form)
        wait_for(other, 0)  # their time is over
        for loan in (loans[0], again):
            with pytest.raises(ExecutionError, match="the bytes are not those that were lent"):
                borrower.read(loan, IDS, form)


def test_a_lender_that_ended_is_an_error(borrower: Borrower) -> None:
    with lender() as other:
        loan, late = other.lend(), other.lend()
        borrower.read(loan, IDS, form)
        other.kill()
        for _ in range(2):
            with pytest.raises(Exception, match="NIXL"):
                borrower.read(late, IDS, form)
    with lender() as other:
        assert borrower.read(other.lend(), IDS, form).tokens == 30
