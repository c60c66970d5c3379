"""What Triton's own TensorRT backend is told of a plan: golden files, and the decisions behind them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.deployments import as_tensorrt, build, classifier
from tests.support.hybrids import case_of, saved
from trtkit.bundle.bundle import open_bundle
from trtkit.deployment.triton.model_config import config_text, read_config, versions
from trtkit.deployment.triton.options import DeployOptions, read_options
from trtkit.deployment.triton.tensor_model import native_models
from trtkit.errors import DeployError
from trtkit.network.input_spec import ProfileShapes, ResolvedProfile

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.deployment.triton.served import DeployedModel

GOLDEN = Path(__file__).parents[3] / "golden" / "triton"
CHAINED = """
name: vit
source: {{hf: {folder}}}
compose: chained
profiles: [{{batch: [1, 2, 4]}}]
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(as_tensorrt(classifier(tmp_path_factory.mktemp("native"))))


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("chained")
    saved(case_of("ViTForImageClassification"), folder / "vit")
    (folder / "vit.yaml").write_text(CHAINED.format(folder=folder / "vit"))
    return open_bundle(as_tensorrt(build(folder / "vit.yaml", folder / "bundle")))


def text(model: DeployedModel) -> str:
    return config_text([*model.sections, versions((1,))])


def config(model: DeployedModel) -> Any:
    return read_config(text(model), model.name)


def changed(bundle: Bundle, **fields: Any) -> Bundle:
    return dataclasses.replace(bundle, manifest=bundle.manifest.model_copy(update=fields))


def images(low: int, opt: int, high: int, *rest: int) -> ResolvedProfile:
    sizes = rest or (3, 16, 16)
    return {"images": ProfileShapes(min=(low, *sizes), opt=(opt, *sizes), max=(high, *sizes))}


def check_golden(found: str, name: str) -> None:
    """Compare with a golden file; TRTKIT_UPDATE_GOLDEN=1 writes it."""
    file = GOLDEN / name
    if os.environ.get("TRTKIT_UPDATE_GOLDEN"):
        file.write_text(found)
    assert found == file.read_text()


def test_a_plan_with_all_that_can_be_asked_for(bundle: Bundle) -> None:
    profiles = (images(1, 2, 4), images(1, 8, 16))
    asked = [
        "instances=2",
        "gpus=[0, 1]",
        "cuda_graphs=true",
        "response_cache=true",
        "resources={memory: 3}",
        "queue.timeout_us=500000",
    ]
    (model,) = native_models(changed(bundle, profiles=profiles), "tiny", read_options(asked))
    assert (model.backend, model.plan, model.runner) == ("tensorrt", bundle.path / "engines/tiny.plan", None)
    check_golden(text(model), "native.pbtxt")


def test_engines_of_a_chained_hybrid_are_an_ensemble(chained: Bundle) -> None:
    models = native_models(chained, "vit", DeployOptions())
    assert [(model.name, model.backend) for model in models] == [
        ("vit_patch", "tensorrt"),
        ("vit_encoder", "tensorrt"),
        ("vit", "ensemble"),
    ]
    assert [model.plan.name for model in models if model.plan] == ["patch.plan", "encoder.plan"]
    check_golden("\n".join(text(model) for model in models), "chained.pbtxt")


def test_preferred_sizes_are_those_that_tensorrt_tuned_for(bundle: Bundle) -> None:
    several = changed(bundle, profiles=(images(1, 4, 8), images(1, 32, 64), images(1, 1, 1)))
    found = config(native_models(several, "tiny", DeployOptions())[0])
    assert found.max_batch_size == 64
    assert list(found.dynamic_batching.preferred_batch_size) == [4, 32]
    assert list(found.instance_group[0].profile) == ["0", "1", "2"]
    limited = config(native_models(several, "tiny", read_options(["max_batch_size=16"]))[0])
    assert (limited.max_batch_size, list(limited.dynamic_batching.preferred_batch_size)) == (16, [4])
    assert [each.batch_size for each in limited.model_warmup] == [4, 16, 1]


def test_graphs_of_dynamic_images_name_their_sizes(bundle: Bundle) -> None:
    inputs = (bundle.manifest.inputs[0].model_copy(update={"shape": (-1, 3, -1, -1)}),)
    wide = changed(bundle, inputs=inputs, profiles=(images(1, 4, 8, 3, 32, 64),))
    found = config(native_models(wide, "tiny", read_options(["cuda_graphs=true"]))[0])
    specs = found.optimization.cuda.graph_spec
    assert [(spec.batch_size, list(spec.input["images"].dim)) for spec in specs] == [(1, [3, 32, 64]), (4, [3, 32, 64])]


@pytest.mark.parametrize("profiles", [(images(2, 2, 4),), ()])
def test_without_a_batch_from_one_up_requests_are_run_as_they_are(bundle: Bundle, profiles: Any) -> None:
    found = config(native_models(changed(bundle, profiles=profiles), "tiny", DeployOptions())[0])
    assert found.max_batch_size == 0
    assert list(found.input[0].dims) == [-1, 3, 16, 16]
    assert not found.HasField("dynamic_batching")


def test_a_batch_above_the_profiles_is_refused(bundle: Bundle) -> None:
    with pytest.raises(DeployError) as error:
        native_models(bundle, "tiny", read_options(["max_batch_size=5"]))
    assert str(error.value) == (
        "tiny: `max_batch_size` is 5; the largest batch of the engine's profiles is 4\n"
        "fix: lower it, or widen the profile and build again"
    )


def test_a_stage_without_a_batch_axis_leaves_none_to_the_ensemble(chained: Bundle) -> None:
    patch, encoder = chained.manifest.stages
    fixed = patch.outputs[0].model_copy(update={"shape": (1, *patch.outputs[0].shape[1:])})
    stages = (patch.model_copy(update={"outputs": (fixed,)}), encoder)
    odd = changed(chained, stages=stages)
    models = native_models(odd, "vit", DeployOptions())
    assert [model.max_batch_size for model in models] == [0, 0, 0]
    assert models[-1].inputs[0].dims == (-1, 3, 30, 18)
