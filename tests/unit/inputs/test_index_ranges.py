from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from tests import models
from trtkit.config.schema import ModelConfig
from trtkit.inputs.index_ranges import table_rows, with_index_ranges
from trtkit.inputs.samples import random_sample
from trtkit.network.onnx.io import graph_inputs


def embeddings() -> object:
    """ids, kinds and mask; ids pick rows of 500 behind a cast, kinds of two tables."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=7),
        helper.make_node("Gather", ["words", "wide"], ["w"]),
        helper.make_node("Gather", ["large", "kinds"], ["a"]),
        helper.make_node("Gather", ["small", "kinds"], ["b"]),
        helper.make_node("Cast", ["mask"], ["m"], to=1),
        helper.make_node("Sum", ["w", "a", "b"], ["y"]),
    ]
    sizes = {"words": 500, "large": 9, "small": 3}
    tables = [numpy_helper.from_array(np.zeros((rows, 4), np.float32), name) for name, rows in sizes.items()]
    inputs = [models.tensor(name, 40, dtype="INT64") for name in ("ids", "kinds", "mask")]
    return models.model(nodes, inputs, [models.tensor("y", 40, 4), models.tensor("m", 40)], tables)


def test_ids_are_drawn_from_all_rows_of_the_smallest_table_they_pick_from() -> None:
    model = embeddings()
    assert table_rows(model) == {"ids": 500, "kinds": 3}
    config = ModelConfig.model_validate({"source": {"onnx": "m.onnx"}, "verify": {"ranges": {"kinds": [0, 1]}}})
    config = with_index_ranges(config, model)
    assert config.verify.ranges == {"ids": (0.0, 499.0), "kinds": (0.0, 1.0)}
    shapes = dict.fromkeys(("ids", "kinds", "mask"), (40,))
    drawn = random_sample("random", shapes, config, graph_inputs(model)).inputs
    assert drawn["ids"].max() > 100
    assert drawn["ids"].max() < 500
    assert set(drawn["mask"]) == {0, 1}
