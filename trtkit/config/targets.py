"""Targets: the hardware that an engine is built for, one YAML file each in `configs/targets/`."""

import re
from typing import Literal

from pydantic import Field, ValidationError

from trtkit.config.explain import explain
from trtkit.config.load import configs_folder
from trtkit.config.strict import StrictModel
from trtkit.config.yaml_file import read_yaml
from trtkit.errors import ConfigError, Problem

OLDEST_OF_TENSORRT = 75
"""The oldest compute capability that TensorRT 11 supports: 7.5, Turing."""


class Target(StrictModel):
    """Hardware to build for."""

    name: str = Field("", description="The file's name if unset.")
    description: str = Field("", description="One-line description.")
    backend: Literal["auto", "tensorrt", "tensorrt_rtx"] = Field("auto", description="The TensorRT to build with.")
    compute_capabilities: tuple[int, ...] = Field(
        (), description="SM numbers, such as [86, 89]; if empty, every GPU that the backend supports."
    )

    @property
    def label(self) -> str:
        """The name, with the GPUs that the target is limited to if the name does not state them."""
        names = ", ".join(f"sm{capability}" for capability in self.compute_capabilities)
        return self.name if names in ("", self.name) else f"{self.name} ({names})"


def shipped_targets() -> list[str]:
    """Return the names of the shipped targets."""
    return sorted(path.stem for path in (configs_folder() / "targets").glob("*.yaml"))


def load_target(name: str) -> Target:
    """Return the shipped target `name`. Raises ConfigError if there is none."""
    path = configs_folder() / "targets" / f"{name}.yaml"
    if name not in shipped_targets():
        raise _unknown(name)
    file = read_yaml(path)
    try:
        return Target.model_validate({"name": name, **file.data})
    except ValidationError as error:
        raise ConfigError(f"invalid target `{path}`", explain(error, Target, file.where)) from None


def _unknown(name: str) -> ConfigError:
    """Return the error for an unknown target; compute capabilities get specific advice."""
    known = Problem(f"known targets: {', '.join(shipped_targets())}")
    match = re.fullmatch(r"sm_?(\d{2,3})", name.lower())
    if match is None:
        return ConfigError(f"unknown target `{name}`", [known], fix="use one of them")
    if int(match[1]) < OLDEST_OF_TENSORRT:
        what = f"TensorRT 11 does not support compute capability {int(match[1]) / 10}"
        fix = f"use a GPU of compute capability {OLDEST_OF_TENSORRT / 10} or newer"
        return ConfigError(f"unknown target `{name}`: {what}", [known], fix=fix)
    what = f"no backend builds for compute capability {int(match[1]) / 10} from another machine"
    fix = "build on that GPU itself, with full TensorRT and `--target local-gpu`"
    return ConfigError(f"unknown target `{name}`: {what}", [known], fix=fix)
