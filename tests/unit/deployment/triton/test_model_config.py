from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from trtkit.deployment.triton import model_config
from trtkit.deployment.triton.model_config import Section, TritonTensor, config_text, read_config
from trtkit.deployment.triton.options import DeployOptions, read_options
from trtkit.errors import ConfigError, DeployError


def parsed(*sections: Section) -> Any:
    return read_config(config_text(sections), "here")


def test_numbers_stand_below_the_comment_that_explains_them() -> None:
    assert config_text(
        [Section("Why it is called so.", {"name": "cat"}), Section("No batch.", {"max_batch_size": 0})]
    ) == ('# Why it is called so.\nname: "cat"\n\n# No batch.\nmax_batch_size: 0\n')


@pytest.mark.parametrize("comment", ['a "quoted" `name: 3`', "two\nlines", "x" * 300, "größer { } #"])
def test_no_comment_becomes_configuration(comment: str) -> None:
    assert parsed(Section(comment, {"name": "cat"})) == ModelConfig(name="cat")


def test_what_is_no_configuration_is_told() -> None:
    with pytest.raises(DeployError) as error:
        read_config("input { nme: 3 }", "models/cat/config.pbtxt")
    assert str(error.value).startswith("models/cat/config.pbtxt: not a model configuration: ")


def test_a_tensor_without_axes_is_reshaped() -> None:
    found = parsed(model_config.interface([TritonTensor("t", "int64", (), is_optional=True, is_scalar=True)], [], ""))
    assert (list(found.input[0].dims), found.input[0].HasField("reshape"), found.input[0].optional) == ([1], True, True)


def test_a_type_that_triton_lacks_is_told() -> None:
    with pytest.raises(DeployError, match="Triton does not support type `fp8`"):
        TritonTensor("x", "fp8", (1,)).fields()


def test_queue_options_reach_the_batcher() -> None:
    options = read_options(
        ["queue.delay_us=500", "queue.max_size=7", "queue.timeout_us=9000", "queue.on_timeout=delay"]
    )
    found = parsed(*model_config.batching(options, 8, [2, 4, 16])).dynamic_batching
    policy = found.default_queue_policy
    assert (found.max_queue_delay_microseconds, list(found.preferred_batch_size)) == (500, [2, 4])
    assert (policy.max_queue_size, policy.default_timeout_microseconds, policy.timeout_action) == (7, 9000, 1)
    assert policy.allow_timeout_override


@pytest.mark.parametrize(("largest", "has_batcher"), [(0, False), (1, False), (2, True)])
def test_only_batches_are_batched(largest: int, has_batcher: bool) -> None:
    found = parsed(*model_config.batching(DeployOptions(), largest, []))
    assert (found.max_batch_size, found.HasField("dynamic_batching")) == (largest, has_batcher)


@pytest.mark.parametrize(
    ("options", "kind", "expected"),
    [
        ([], "KIND_AUTO", (1, 0, [])),
        (["instances=3", "gpus=[1]"], "KIND_AUTO", (3, 1, [1])),
        (["gpus=[0,2]"], "KIND_GPU", (1, 1, [0, 2])),
        (["gpus=[0]"], "KIND_CPU", (1, 2, [])),
    ],
)
def test_instances_are_where_they_are_asked_for(
    options: list[str], kind: str, expected: tuple[int, int, list[int]]
) -> None:
    group = parsed(model_config.instances(read_options(options), kind)).instance_group[0]
    assert (group.count, group.kind, list(group.gpus)) == expected


def test_resources_are_for_the_rate_limiter() -> None:
    group = parsed(model_config.instances(read_options(["resources={memory: 3}"]), "KIND_GPU")).instance_group[0]
    assert [(each.name, each.count) for each in group.rate_limiter.resources] == [("memory", 3)]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("queue.delay_us=-1", "queue.delay_us"),
        ("queue.on_timeout=wait", "queue.on_timeout"),
        ("warmup=perhaps", "warmup"),
        ("instances=many", "instances"),
        ("keep_versions=0", "keep_versions"),
        ("resources={memory: some}", "resources.memory"),
        ("gpus=[-1]", "gpus"),
        ("speed=high", "speed"),
    ],
)
def test_wrong_options_are_told_by_name(option: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_options([option])
    assert str(error.value).startswith("invalid deployment options\n")
    assert said in str(error.value)
    assert f"--set {option}" in str(error.value)
