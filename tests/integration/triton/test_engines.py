"""Served bundles run their engines: a real tritonserver with TensorRT's simulated runtime in its processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.served_llm import answers
from tests.support.served_vision import ask, connect
from tests.support.triton import serving
from trtkit import SamplingParams
from trtkit.cli.main import main
from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.triton import Served
    from trtkit import LLM

SIMULATE = """\
sys.path.insert(0, {root!r})
from tests.simulated_tensorrt import simulate
from trtkit.bundle.bundle import open_bundle

simulated = simulate(setattr)
simulated.plans.add(open_bundle({bundle!r}))
network_of = simulated.plans.network


def opened(plan):
    open({bundle!r} + ".opened", "w").close()
    return network_of(plan)


simulated.plans.network = opened
"""


@pytest.fixture(scope="module")
def engines(vision_folder: Path, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A language model, a classifier and two chained engines."""
    repository = tmp_path_factory.mktemp("engines")
    for bundle, name in (
        (tiny_folder / "bundle", "chat"),
        (vision_folder / "tiny", "plain"),
        (vision_folder / "chained", "chained"),
    ):
        kind = ["--as", "tensors"] if name == "plain" else []
        main(["deploy", str(bundle), "--name", name, *kind, "--repository", str(repository), "-q"])
        model = repository / name / "1/model.py"
        *before, import_line = model.read_text().rstrip().split("\n")
        root = str(Path(__file__).parents[3])
        simulated = SIMULATE.format(root=root, bundle=str(repository / name / "1/bundle"))
        model.write_text("\n".join([*before, simulated, import_line, ""]))
    with serving(repository) as running:
        assert {state.state for state in running.states.values()} == {"READY"}, running.log
        assert len(list(repository.glob("*/1/bundle.opened"))) == len(running.states)
        yield running


def test_a_language_model(engines: Served, llm: LLM) -> None:
    for seed in (1, 2):
        (answer,) = answers(engines, "chat", text_input="the sky is", max_tokens=12, seed=seed, top_p=0.9)
        wanted = llm.generate("the sky is", SamplingParams(temperature=1.0, top_p=0.9, seed=seed, max_tokens=12))[0]
        assert answer["output_ids"][0, 0].tolist() == list(wanted.outputs[0].token_ids)


@pytest.mark.parametrize("name", ["plain", "chained"])
def test_a_network_of_arrays(engines: Served, vision_folder: Path, name: str) -> None:
    reference = open_model(vision_folder / {"plain": "tiny"}.get(name, name), "reference")
    tensor = reference.bundle.manifest.inputs[0]
    pixels = np.random.default_rng(0).standard_normal((2, *tensor.shape[1:])).astype(np.float32)
    answer = ask(connect(engines, "http"), name, **{tensor.name: pixels})
    for output, value in reference.run({tensor.name: pixels}).items():
        np.testing.assert_allclose(answer[output], value, rtol=0, atol=1e-5)
