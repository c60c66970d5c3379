from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trtkit.config.overrides import apply_override, parse_override
from trtkit.errors import ConfigError

KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
SCALARS = st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="ascii", exclude_categories=["Cc"]))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
KEY_PATHS = st.lists(KEYS | st.integers(0, 9), min_size=1, max_size=4).map(tuple)


def applied(data: Any, text: str) -> Any:
    key_path, value = parse_override(text)
    apply_override(data, key_path, value, f"--set {text}")
    return data


@given(KEY_PATHS, VALUES)
def test_what_is_written_is_what_is_parsed(key_path: tuple[str | int, ...], value: Any) -> None:
    written = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("\n...")
    assert parse_override(f"{'.'.join(map(str, key_path))}={written}") == (key_path, value)


@given(st.lists(KEYS, min_size=1, max_size=4), VALUES)
def test_what_is_set_is_what_is_found(keys: list[str], value: Any) -> None:
    data: dict[str, Any] = {"kept": 1}
    apply_override(data, ("root", *keys), value, "")
    found: Any = data["root"]
    for key in keys:
        found = found[key]
    assert found == value
    assert data["kept"] == 1


def test_index_reaches_into_lists_and_makes_them() -> None:
    data = {"profiles": [{"batch": [1, 8, 32]}]}
    assert applied(data, "profiles.0.batch.1=4") == {"profiles": [{"batch": [1, 4, 32]}]}
    assert applied(data, "profiles.1.batch=2") == {"profiles": [{"batch": [1, 4, 32]}, {"batch": 2}]}
    assert applied({}, "profiles.0.batch=[1, 2, 3]") == {"profiles": [{"batch": [1, 2, 3]}]}


def test_setting_one_kind_of_source_takes_the_others_away() -> None:
    data = {"source": {"torch": {"factory": "a:b"}, "requires": "a"}}
    assert applied(data, "source.onnx=m.onnx") == {"source": {"onnx": "m.onnx"}}
    assert applied({"source": {"onnx": "m.onnx"}}, "source.hf=folder") == {"source": {"hf": "folder"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("precision", "an override is `key.path=value`, such as `precision=fp16`"),
        ("=fp16", "an override is `key.path=value`, such as `precision=fp16`"),
        ("a=[1", "the value is not valid YAML: "),
        ("list.5=1", "index `5` is out of range: the list has 1"),
        ("list.5.x=1", "`5` is neither a key nor an index there"),
        ("text.key=1", "cannot set `key`: its parent is a plain value"),
        ("source.onnx=1", "cannot set `onnx`: its parent is a plain value"),
    ],
)
def test_override_that_does_not_fit_is_named(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        applied({"list": [0], "text": "t", "source": "m.onnx"}, text)
    message = str(caught.value)
    assert message.startswith(f"invalid override\n  --set {text}: {expected}")
    assert caught.value.exit_code == 2
