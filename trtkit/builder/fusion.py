"""Fusion: which layers of a bundle's networks each kernel of its engines computes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.builder.jobs import DIGEST, LIST_KERNELS
from trtkit.builder.stages import bundle_stages
from trtkit.builder.write_stages import stage_request
from trtkit.errors import BuildError
from trtkit.files import scratch_folder
from trtkit.network.fusion import Fusion, compare_with_plan, fuse
from trtkit.network.input_spec import PROMPT_PLACES
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner
    from trtkit.network.record import NetworkRecord


# Profile names of a language model and of its head, as from `decoder_profiles`, and those of a packed model.
_PHASES, _PACKED_PHASES = ("prefill", "decode"), ("mixed", "decode")


def bundle_fusions(bundle: Bundle, runner: Runner) -> Iterator[tuple[Fusion, NetworkRecord]]:
    """Yield the fusion of every stage and profile with its network; only the first rank if several share the model.

    Every stage is rebuilt in a temporary folder, since an engine reveals its kernels only on its GPU.
    Raises BundleError if a file or the source has changed since the build, BuildError if TensorRT does not list
    kernels.
    """
    bundle.check_files()
    manifest, stages = bundle.manifest, bundle_stages(bundle)
    if any(stage.writer != "parser" for stage in stages):
        bundle.check_sources({file.sha256 for file in runner.run(DIGEST, manifest.config).files})
    model = resolve(manifest.config) if manifest.decoder is not None else None
    config, images = (manifest.config, None) if model is None else (model.config, model.images)
    for stage in stages:
        prepared = replace(stage, opt_shapes=bundle.network_record().shapes)
        with scratch_folder() as folder:
            request = stage_request(config, manifest.target, manifest.backend.name, prepared, bundle.path)
            listed = runner.run(LIST_KERNELS, replace(request, plan=folder / "plan", images=images))
        if not listed.kernels:
            what = f"{manifest.backend.name} {manifest.backend.version} did not list the kernels of its engine"
            raise BuildError(what, stage.name, "leave out `--fusion`")
        for profile, record in enumerate(listed.records):
            kernels = [kernel for kernel in listed.kernels if kernel.profile == profile]
            phases = _PACKED_PHASES if PROMPT_PLACES in stage.profiles[profile] else _PHASES
            phase = phases[profile] if stage.writer in ("decoder", "speculator") else ""
            ranks = manifest.grid.ranks if stage.writer == "decoder" else 1
            fusion = replace(fuse(stage.name, record, kernels, phase), ranks=ranks)
            yield compare_with_plan(fusion, bundle.engine_path(stage.name)), record
