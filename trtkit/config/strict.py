"""The base of every config model."""

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Frozen; an unknown key is an error; no silent conversion from text to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)
