"""LoRA adapters of a running engine: which are loaded, which are resident, and which ranks each owns."""

from trtkit.llm.adapters.adapters import (
    Adapters,
    LoadedAdapter,
    PreparedAdapter,
    bundle_adapters,
    check_adapter_name,
    check_adapters,
    no_adapters,
    prepared_matrices,
)

__all__ = [
    "Adapters",
    "LoadedAdapter",
    "PreparedAdapter",
    "bundle_adapters",
    "check_adapter_name",
    "check_adapters",
    "no_adapters",
    "prepared_matrices",
]
