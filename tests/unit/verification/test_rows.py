from __future__ import annotations

import numpy as np
import pytest

from trtkit.verification.rows import paired_rows, partners


def test_rows_get_the_references_order_in_all_outputs() -> None:
    generator = np.random.default_rng(0)
    theirs = {"logits": generator.standard_normal((2, 7, 5)), "boxes": generator.uniform(size=(2, 7, 4))}
    order = np.array([generator.permutation(7) for _ in range(2)])
    ours = {name: np.take_along_axis(value, order[..., None], 1) + 1e-9 for name, value in theirs.items()}
    found = paired_rows(ours, theirs)
    for name, value in theirs.items():
        np.testing.assert_allclose(found[name], value, atol=1e-8)


def test_row_without_a_partner_stays_an_error() -> None:
    theirs = {"logits": np.array([[[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]])}
    ours = {"logits": np.array([[[0.0, 1.0], [1.0, 0.0], [-5.0, 5.0]]])}
    found = paired_rows(ours, theirs)["logits"][0]
    np.testing.assert_array_equal(found[:2], theirs["logits"][0][:2])
    np.testing.assert_array_equal(found[2], [-5.0, 5.0])


def test_values_that_are_no_numbers_are_paired_too() -> None:
    theirs = {"boxes": np.ones((1, 3, 4))}
    assert np.isnan(paired_rows({"boxes": np.full((1, 3, 4), np.nan)}, theirs)["boxes"]).all()


def test_rows_that_one_side_alone_has_are_left_out_and_counted() -> None:
    generator = np.random.default_rng(0)
    theirs = {"logits": generator.standard_normal((2, 10, 5)), "boxes": generator.uniform(size=(2, 10, 4))}
    ours = {name: value * 1.01 for name, value in theirs.items()}
    ours["logits"][1, 3], ours["boxes"][1, 3] = -theirs["logits"][1, 3], 0.0
    kept, wanted, share = partners(ours, theirs, 0.02)
    assert share == pytest.approx(1 / 20)
    assert {name: value.shape for name, value in kept.items()} == {"logits": (19, 5), "boxes": (19, 4)}
    for name, value in kept.items():
        np.testing.assert_allclose(value, wanted[name] * 1.01)


def test_rows_that_are_no_numbers_are_not_left_out() -> None:
    theirs = {"boxes": np.ones((1, 4, 4))}
    ours = {"boxes": np.array(np.ones((1, 4, 4)))}
    ours["boxes"][0, 2] = np.nan
    kept, _, share = partners(ours, theirs, 0.02)
    assert share == 0
    assert np.isnan(kept["boxes"]).any()


def test_a_result_that_is_wrong_everywhere_has_no_partners() -> None:
    generator = np.random.default_rng(0)
    theirs, ours = ({"boxes": generator.standard_normal((1, 50, 4))} for _ in range(2))
    assert partners(paired_rows(ours, theirs), theirs, 0.02)[2] > 0.5
