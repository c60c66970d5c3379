"""LoRA adapters while an engine runs: which are loaded, which are resident, and whose each rank is."""

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
