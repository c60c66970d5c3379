"""Linear layers that adapters can change while an engine runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtkit.dtypes import INT32
from trtkit.errors import ConfigError, Problem, ProblemsError, did_you_mean
from trtkit.lora.adapter import model_modules
from trtkit.models.parallel import rank_spec

if TYPE_CHECKING:
    from trtkit.config.llm import LoraOptions
    from trtkit.dtypes import DType
    from trtkit.lora.adapter import Adapter
    from trtkit.models.parallel import Grid
    from trtkit.models.spec import DecoderSpec

# Excluded: experts, which read tokens of all rows together; streams, whose router reads twice; and `kv_b`, which is
# absorbed.
_LINEAR = re.compile(
    r"layers\.\d+\.(?:(?:attention|mlp|conv|delta|mamba|per_layer|laurel|moe\.shared)\.(?!kv_b$|relative_bias$|.*norm$)\w+"
    r"|moe\.shared_router)$"
)


def adapted_layers(spec: DecoderSpec, options: LoraOptions) -> frozenset[str]:
    """Return the paths of layers that adapters may change.

    Raises ConfigError for targets that the model does not have.
    """
    names = {name: module.path for name, module in model_modules(spec).items() if _LINEAR.match(module.path)}
    chosen = {target: {name for name in names if f".{name}".endswith(f".{target}")} for target in options.targets}
    missing = [target for target, matching in chosen.items() if not matching]
    if missing:
        ends = sorted({name.rpartition(".")[2] for name in names})
        listed = ", ".join(f"`{end}`" for end in ends)
        problems = [
            Problem(
                f"the model has no linear layer `{target}`",
                "llm.lora.targets",
                f"{did_you_mean(target, ends)}use {listed}",
            )
            for target in missing
        ]
        raise ConfigError(f"the config does not fit a `{spec.model_type}`", problems)
    return frozenset(names[name] for matching in chosen.values() for name in matching) or frozenset(names.values())


def check_stages(spec: DecoderSpec, options: LoraOptions, grid: Grid) -> None:
    """Raise ConfigError for unknown targets, and for a pipeline stage without a layer that adapters may change."""
    paths = adapted_layers(spec, options)
    for stage in range(grid.pipeline):
        stage_spec = rank_spec(spec, grid, stage * grid.stage_ranks)
        if paths.isdisjoint(module.path for module in model_modules(stage_spec).values()):
            what = f"stage {stage} of {grid.pipeline} has no layer that takes adapters"
            problem = Problem(what, "llm.lora.targets", "use fewer pipeline stages, or more targets")
            raise ConfigError(f"the config does not fit a `{spec.model_type}`", [problem])


def adapter_bytes(
    spec: DecoderSpec, options: LoraOptions | None, dtype: DType, own_spec: DecoderSpec | None = None
) -> int:
    """Return the bytes that a model, or its part `own_spec`, reserves for adapters: two matrices per layer."""
    if options is None:
        return 0
    paths = adapted_layers(spec, options)
    sizes = sum(sum(module.shape) for module in model_modules(own_spec or spec).values() if module.path in paths)
    return options.max_rank_sum * (dtype.size_bytes(sizes) + INT32.size_bytes(1))


def check_adapter(adapter: Adapter, paths: frozenset[str], max_adapter_rank: int) -> None:
    """Raise ProblemsError for an adapter that changes other layers than the engine's, or whose rank is too large."""
    where = str(adapter.folder)
    problems = [
        Problem(f"it changes `{path}`, which the engine takes no adapters for", where)
        for path in sorted(adapter.parts.keys() - paths)
    ]
    if adapter.adapter_rank > max_adapter_rank:
        problems.append(
            Problem(f"its rank, {adapter.adapter_rank}, is above `llm.lora.max_rank_sum`, {max_adapter_rank}", where)
        )
    if problems:
        rest = [Problem(f"and {len(problems) - 8} more")] if len(problems) > 8 else []
        fix = "build with these targets in `llm.lora.targets`, and ranks up to `llm.lora.max_rank_sum`"
        raise ProblemsError("the adapter does not fit the engine", [*problems[:8], *rest], f"{fix}; or `source.lora`")
