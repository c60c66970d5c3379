"""`verify` compares the networks in a bundle, which run, with those written from the source, which it computes."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import tiny_llm
from tests.support.hybrids import case_of, saved
from tests.support.models import classifier, save
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle, write_json
from trtkit.config.load import load_config
from trtkit.errors import TrtkitError
from trtkit.files import MANIFEST, sha256_of
from trtkit.jobs.events import Event, Progress
from trtkit.jobs.runner import InlineRunner, new_runner
from trtkit.verification.jobs import COMPARE_NETWORKS, NetworksRequest, VerifySettings
from trtkit.verification.verify import verify_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.jobs.job import Job, Request, Result
    from trtkit.verification.report import BundleNetwork

pytestmark = pytest.mark.usefixtures("one_export")

LLM = "llm: {max_batch_size: 2, max_sequence_length: 64, max_prefill_length: 16, logits: last}\n"
CONFIGS = {
    "vision": "source: {onnx: m.onnx}\nprofiles: [{batch: [1, 2, 4]}]\nverify: {random_shapes: 0}\n",
    "decoder": f"source: {{hf: hf}}\nprecision: fp16\n{LLM}",
    "ranks": f"source: {{hf: hf}}\nprecision: fp32\nparallel: {{tensor: 2}}\n{LLM}",
    "hybrid": f"source: {{hf: detr}}\ncompose: chained\nimage_size: {list(case_of('DetrForObjectDetection').size)}\n",
}
CHANGED = {"vision": ("m", 0), "decoder": ("m", 0), "ranks": ("m", 1), "hybrid": ("encoder", 0)}
"""Stage and rank whose layers are changed."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a bundle of a kind, built when it is first wanted."""
    folder = tmp_path_factory.mktemp("networks")
    tiny_llm.save(folder / "hf")
    saved(case_of("DetrForObjectDetection"), folder / "detr")
    save(classifier(), folder / "m.onnx")

    def bundle(kind: str) -> Path:
        if not (folder / kind).exists():
            (folder / "m.yaml").write_text(CONFIGS[kind])
            build_bundle(load_config(str(folder / "m.yaml")), folder / kind, new_runner())
        return folder / kind

    return bundle


class Layers:
    """The layers of one network in a copy of a bundle, to be changed and saved with digests that are right."""

    def __init__(self, bundle: Path, kind: str, copy: Path) -> None:
        shutil.copytree(bundle, copy)
        self.bundle, (self.stage, self.rank) = copy, CHANGED[kind]
        network = open_bundle(copy).manifest.stage(self.stage).networks[self.rank]
        assert network.layers is not None
        assert network.layers.weights is not None
        self.file, self.weights = copy / network.layers.layers.path, copy / network.layers.weights.path
        self.data = json.loads(self.file.read_text())

    def row(self, index: int, holds: Callable[[Any], object]) -> list[Any]:
        """Return the first layer from `index` on whose field there has what is wanted."""
        return next(row for row in self.data["layers"] if len(row) > index and holds(row[index]))

    def save(self) -> Path:
        self.file.write_text(json.dumps(self.data))
        manifest = (self.bundle / MANIFEST).read_text()
        records = open_bundle_records(json.loads(manifest))
        for record in records:
            if "/" in record["path"] and (path := self.bundle / record["path"]).is_file():
                manifest = manifest.replace(record["sha256"], sha256_of(path))
        write_json(self.bundle / MANIFEST, json.loads(manifest))
        return self.bundle


def open_bundle_records(data: Any) -> list[dict[str, Any]]:
    """Return all records of files in a manifest."""
    if isinstance(data, dict) and {"path", "sha256"} <= set(data):
        return [data]
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return [record for value in values for record in open_bundle_records(value)]


def compared(bundle: Path) -> tuple[BundleNetwork, ...]:
    return new_runner().run(COMPARE_NETWORKS, NetworksRequest(bundle)).networks


def another_attribute(layers: Layers) -> tuple[str, str]:
    row = layers.row(4, lambda attributes: any(type(each) is int for each in attributes.values()))
    name = next(name for name, value in row[4].items() if type(value) is int)
    row[4][name] += 1
    return row[1], rf"attribute `{name}` is {row[4][name]}, expected {row[4][name] - 1}$"


def another_bit(layers: Layers) -> tuple[str, str]:
    row = layers.row(5, lambda weights: any(place[2] == -1 for place in weights.values()))
    name, (_, count, _, offset) = next((name, place) for name, place in row[5].items() if place[2] == -1)
    assert count
    content = bytearray(layers.weights.read_bytes())
    content[offset] ^= 1
    layers.weights.write_bytes(content)
    return row[1], rf"constant `{name}`: 1 of \d+ bytes differ$"


def no_layer(layers: Layers) -> tuple[str, str]:
    row = layers.data["layers"].pop(len(layers.data["layers"]) // 2)
    return row[1], "the layer is missing$"


@pytest.mark.parametrize("change", [another_attribute, another_bit, no_layer])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_changed_network_is_named(
    kind: str, change: Callable[[Layers], tuple[str, str]], bundles: Callable[[str], Path], tmp_path: Path
) -> None:
    layers = Layers(bundles(kind), kind, tmp_path / "m")
    layer, what = change(layers)
    differing = [network for network in compared(layers.save()) if not network.passed]
    assert [(each.stage, each.rank, each.layer) for each in differing] == [(layers.stage, layers.rank, layer)]
    assert re.match(what, differing[0].difference), differing[0].difference


def test_weights_that_are_read_from_another_place_of_the_source_are_named(
    bundles: Callable[[str], Path], tmp_path: Path
) -> None:
    layers = Layers(bundles("ranks"), "ranks", tmp_path / "m")
    row = layers.row(5, lambda weights: any(place[2] >= 0 for place in weights.values()))
    for place in row[5].values():
        place[3] += 4
    (differing,) = [network for network in compared(layers.save()) if not network.passed]
    assert (differing.rank, differing.layer) == (1, row[1])


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_networks_of_a_bundle_as_it_was_built_are_equal(kind: str, bundles: Callable[[str], Path]) -> None:
    bundle = open_bundle(bundles(kind))
    places = [(stage.name, rank) for stage in bundle.manifest.stages for rank in range(len(stage.networks))]
    networks = compared(bundle.path)
    assert [(network.stage, network.rank) for network in networks] == places
    assert all(network.is_held and network.passed for network in networks)
    assert len(networks) == {"ranks": 2, "hybrid": 3}.get(kind, 1)


@dataclass(frozen=True)
class Noted(InlineRunner):
    """Does jobs, and notes their names. dies_after_verdict: the job that verifies gives its verdict, then fails."""

    names: list[str] = field(default_factory=list)
    dies_after_verdict: bool = False

    def run(self, job: Job[Request, Result], request: Request) -> Result:
        self.names.append(job.name)
        result = super().run(job, request)
        if not (self.dies_after_verdict and job.name == "verify"):
            return result
        raise TrtkitError("the process ended by SIGKILL")


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_process_that_verifies_compares_the_bundles_networks(
    kind: str, bundles: Callable[[str], Path], tmp_path: Path
) -> None:
    events: list[Event] = []
    layers, runner = Layers(bundles(kind), kind, tmp_path / "m"), Noted(events.append)
    layer, _ = no_layer(layers)
    report = verify_bundle(open_bundle(layers.save()), VerifySettings(corners=False), runner)
    assert [network.layer for network in report.networks if not network.passed] == [layer]
    assert not report.passed
    assert runner.names == (["verify"] if kind == "vision" else ["digest", "verify"])
    if kind in ("decoder", "ranks"):
        totals = {event.name: event.total for event in events if isinstance(event, Progress)}
        assert totals["compare logits"] == totals["compare greedy tokens"] == len(report.samples)


def test_networks_are_compared_though_the_process_that_verified_died_at_them(
    bundles: Callable[[str], Path],
) -> None:
    runner = Noted(dies_after_verdict=True)
    report = verify_bundle(open_bundle(bundles("vision")), VerifySettings(corners=False), runner)
    assert runner.names == ["verify", "compare_networks"]
    assert (report.passed, report.layers_problem, len(report.networks)) == (True, "", 1)


@pytest.mark.parametrize("kind", ["vision", "decoder"])
def test_another_network_fails_by_name(
    kind: str, bundles: Callable[[str], Path], tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    right = trtkit("verify", bundles(kind), "--no-corners", "--json")
    assert (right.code, [each["difference"] for each in right.json()["networks"]]) == (0, [""])
    layers = Layers(bundles(kind), kind, tmp_path / "m")
    layer, _ = no_layer(layers)
    ran = trtkit("verify", layers.save(), "--no-corners")
    assert ran.code == 3
    assert " ".join(ran.out.split()).endswith(
        "fix: build it again: `trtkit build CONFIG --output BUNDLE` "
        f"FAIL (other network): m in {'fp32' if kind == 'vision' else 'fp16'}, the bundle's network is not the one "
        f"written from its source: stage `m`, rank 0, layer `{layer}`: the layer is missing"
    )
    kept = open_bundle(layers.bundle).manifest.verify
    assert kept is not None
    assert (kept.passed, kept.verdict) == (False, "FAIL (other network)")
