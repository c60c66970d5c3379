"""A model as it will be deployed to a server, before anything is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trtkit.errors import DeployError

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.deployment.triton.model_config import Section, TritonTensor

Kind = Literal["model", "ensemble", "pipeline", "preprocess", "postprocess", "llm", "ocr"]
BackendName = Literal["tensorrt", "python", "ensemble"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class DeployedModel:
    """One folder of a repository.

    sections: of its config.pbtxt, without the version policy. reasons: for its design, in sentences. plan: becomes
    model.plan, for TensorRT's backend; without one, `bundle` is copied into the version's folder. runner:
    `module:class` that Triton's Python backend runs. settings: what that class reads from settings.json.
    """

    name: str
    kind: Kind
    backend: BackendName
    inputs: tuple[TritonTensor, ...]
    outputs: tuple[TritonTensor, ...]
    sections: tuple[Section, ...]
    reasons: tuple[str, ...] = ()
    bundle: Bundle | None = None
    plan: Path | None = None
    runner: str | None = None
    settings: dict[str, Any] | None = None

    @property
    def max_batch_size(self) -> int:
        """The largest batch, 0 if there is no batch axis."""
        sizes = (section.fields["max_batch_size"] for section in self.sections if "max_batch_size" in section.fields)
        return int(next(sizes))


def check_name(name: str) -> str:
    """Return `name`. Raises DeployError if it could leave the repository or Triton would refuse it."""
    if _NAME.fullmatch(name) is None:
        what = f"invalid model name `{name}`: use letters, digits, `.`, `_` and `-`, starting with a letter or digit"
        raise DeployError(what, "--name", "choose another name")
    return name
