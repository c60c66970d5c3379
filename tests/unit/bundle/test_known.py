from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support.deployments import classifier
from trtkit.bundle.bundle import Bundle, open_bundle
from trtkit.bundle.known import FILE, KnownRequest, list_known, read_all_known, read_known, write_known
from trtkit.deployment.make_known import ensure_known
from trtkit.errors import BundleError
from trtkit.runtime.model import open_model

IMAGE = KnownRequest(
    {"image": np.array([[b"\x89PNG", b""]], dtype=np.object_)}, {"text": np.array(["größer".encode()], object)}, 0.0
)
TENSOR = KnownRequest({"x": np.arange(6, dtype=np.float16).reshape(2, 3)}, {"y": np.array([[True], [False]])}, 1e-3)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(classifier(tmp_path_factory.mktemp("known")))


def test_requests_are_read_as_they_were_written(bundle: Bundle) -> None:
    write_known(bundle, [IMAGE, TENSOR])
    for found, wanted in zip(read_all_known(bundle), (IMAGE, TENSOR), strict=True):
        for arrays, expected in ((found.inputs, wanted.inputs), (found.outputs, wanted.outputs)):
            assert list(arrays) == list(expected)
            for name, value in expected.items():
                assert arrays[name].dtype == value.dtype
                assert arrays[name].tolist() == value.tolist()
        assert found.tolerance == wanted.tolerance


def test_the_request_that_fits_a_model_is_found(bundle: Bundle) -> None:
    write_known(bundle, [IMAGE, TENSOR])
    assert list((read_known(bundle, ["x", "more"]) or IMAGE).inputs) == ["x"]
    assert list((read_known(bundle, ["image"], ["text", "score"]) or TENSOR).inputs) == ["image"]
    assert read_known(bundle, ["image"], ["class_id"]) is None
    assert read_known(bundle, ["pixels"]) is None


def test_requests_of_another_engine_do_not_count(bundle: Bundle) -> None:
    write_known(bundle, [TENSOR])
    data = json.loads((bundle.path / FILE).read_text())
    (bundle.path / FILE).write_text(json.dumps({**data, "build_key": "0" * 64}))
    list_known(bundle)
    assert read_all_known(bundle) == []


def test_a_changed_answer_is_refused_by_its_hash(bundle: Bundle) -> None:
    write_known(bundle, [TENSOR])
    (bundle.path / FILE).write_text((bundle.path / FILE).read_text() + " ")
    with pytest.raises(BundleError) as error:
        read_all_known(bundle)
    assert str(error.value) == (
        f"{bundle.path / FILE}: the file has changed since the build: SHA-256 mismatch\n"
        "fix: remove it and deploy the bundle again"
    )


@pytest.mark.parametrize("text", ["", "[]", "{", '{"build_key": 1}', '{"requests": []}'])
def test_a_damaged_file_is_told(bundle: Bundle, text: str) -> None:
    (bundle.path / FILE).write_text(text)
    list_known(bundle)
    if text == '{"build_key": 1}':
        assert read_all_known(bundle) == []
        return
    with pytest.raises(BundleError) as error:
        read_all_known(bundle)
    assert str(error.value).startswith(f"{bundle.path / FILE}: cannot be read: ")
    assert str(error.value).endswith("fix: remove it and deploy the bundle again")


def test_answers_are_those_of_another_runtime(bundle: Bundle) -> None:
    (bundle.path / FILE).unlink(missing_ok=True)
    assert ensure_known(bundle, None, lambda _: None) == "known requests: 1, answered by the runtime that is here"
    (known,) = read_all_known(bundle)
    wanted = open_model(bundle.path, "onnxruntime").run(known.inputs)
    np.testing.assert_allclose(known.outputs["logits"], wanted["logits"], rtol=1e-4, atol=1e-5)


def test_a_bundle_that_cannot_be_written_has_none(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    (bundle.path / FILE).unlink(missing_ok=True)
    (bundle.path / FILE).mkdir()
    said = ensure_known(bundle, None, lambda _: None)
    (bundle.path / FILE).rmdir()
    assert said.startswith("no known request: ")
    assert "Is a directory" in said
