"""Targets: the hardware that an engine is built for, one YAML file each in `configs/targets/`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError

from trtkit.config.explain import explain
from trtkit.config.load import configs_folder
from trtkit.config.strict import StrictModel
from trtkit.config.yaml_file import read_yaml
from trtkit.errors import ConfigError, Problem


class Target(StrictModel):
    """Hardware to build for.

    compute_capabilities: SM numbers, such as 89; empty builds for every GPU that the backend covers.
    """

    name: str = ""
    description: str = ""
    backend: Literal["auto", "tensorrt", "tensorrt_rtx"] = "auto"
    compute_capabilities: tuple[int, ...] = Field((), description="SM numbers, such as [86, 89].")


def shipped_targets() -> list[str]:
    """Return the names of the targets that come with trtkit."""
    return sorted(path.stem for path in (configs_folder() / "targets").glob("*.yaml"))


def load_target(name: str) -> Target:
    """Return the shipped target called `name`. Raises ConfigError where there is none."""
    path = configs_folder() / "targets" / f"{name}.yaml"
    if name not in shipped_targets():
        known = ", ".join(shipped_targets())
        raise ConfigError(f"unknown target `{name}`", [Problem(f"known targets: {known}")], fix="use one of them")
    file = read_yaml(path)
    try:
        return Target.model_validate({"name": name, **file.data})
    except ValidationError as error:
        raise ConfigError(f"invalid target `{path}`", explain(error, Target, file.where)) from None
