from __future__ import annotations

import numpy as np

from trtkit.verify.rows import paired_rows


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
