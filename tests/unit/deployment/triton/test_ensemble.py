from __future__ import annotations

from typing import Any

from trtkit.deployment.triton.ensemble import ensemble
from trtkit.deployment.triton.model_config import Section, TritonTensor, config_text, read_config
from trtkit.deployment.triton.served import DeployedModel


def step(name: str, inputs: str, outputs: str) -> DeployedModel:
    """Return a model with these tensors, such as `a b`."""
    ports = [tuple(TritonTensor(each, "fp32", (2,)) for each in names.split()) for names in (inputs, outputs)]
    return DeployedModel(name, "model", "python", ports[0], ports[1], (Section("", {"max_batch_size": 4}),))


def maps(steps: list[DeployedModel], inputs: str, outputs: str) -> list[tuple[dict[str, str], dict[str, str]]]:
    ends = step("ends", inputs, outputs)
    made = ensemble("all", "ensemble", steps, ends.inputs, ends.outputs)
    found: Any = read_config(config_text(made.sections), "all")
    assert found.platform == "ensemble"
    assert found.max_batch_size == 4
    return [(dict(each.input_map), dict(each.output_map)) for each in found.ensemble_scheduling.step]


def test_tensors_go_from_step_to_step() -> None:
    assert maps([step("p", "image", "x"), step("n", "x", "y"), step("q", "y", "label")], "image", "label") == [
        ({"image": "image"}, {"x": "p.x"}),
        ({"x": "p.x"}, {"y": "n.y"}),
        ({"y": "n.y"}, {"label": "label"}),
    ]


def test_a_networks_input_may_be_called_as_the_picture() -> None:
    assert maps(
        [step("p", "image", "image"), step("n", "image", "score"), step("q", "score", "score")], "image", "score"
    ) == [
        ({"image": "image"}, {"image": "p.image"}),
        ({"image": "p.image"}, {"score": "n.score"}),
        ({"score": "n.score"}, {"score": "score"}),
    ]


def test_what_nobody_takes_is_not_mapped() -> None:
    assert maps([step("p", "x", "y unused"), step("q", "y", "z other")], "x", "z") == [
        ({"x": "x"}, {"y": "p.y"}),
        ({"y": "p.y"}, {"z": "z"}),
    ]


def test_a_seam_may_skip_a_step_and_an_output_come_early() -> None:
    steps = [step("a", "x", "s early"), step("b", "s x", "t"), step("c", "s t", "late")]
    assert maps(steps, "x", "early late") == [
        ({"x": "x"}, {"s": "a.s", "early": "early"}),
        ({"s": "a.s", "x": "x"}, {"t": "b.t"}),
        ({"s": "a.s", "t": "b.t"}, {"late": "late"}),
    ]
