"""Several models as one: tensors go from step to step inside the server."""

from collections.abc import Sequence
from typing import Any

from trtkit.deployment.triton import model_config
from trtkit.deployment.triton.model_config import Section, TritonTensor
from trtkit.deployment.triton.served import DeployedModel, Kind


def ensemble(
    name: str,
    kind: Kind,
    steps: Sequence[DeployedModel],
    inputs: tuple[TritonTensor, ...],
    outputs: tuple[TritonTensor, ...],
) -> DeployedModel:
    """Return the model that clients call. steps: in order; each takes tensors of `inputs` or earlier steps by name."""
    first = steps[0]
    sections = (
        Section("What clients call: each step runs inside the server, tensors never leave it.", {"name": name}),
        Section("An ensemble schedules, it runs nothing itself.", {"platform": "ensemble"}),
        Section(f"As `{first.name}`.", {"max_batch_size": first.max_batch_size}),
        model_config.interface(inputs, outputs, "What the first steps take and what the last ones give."),
        Section(
            "The newest served version of each step.",
            {"ensemble_scheduling": {"step": _step_fields(steps, inputs, outputs)}},
        ),
    )
    listed = ", ".join(tensor.name for tensor in outputs)
    reason = f"{name}: {', '.join(tensor.name for tensor in inputs)} in, {listed} out; {len(steps)} steps"
    return DeployedModel(name, kind, "ensemble", inputs, outputs, sections, (reason,))


def _step_fields(
    steps: Sequence[DeployedModel], inputs: tuple[TritonTensor, ...], outputs: tuple[TritonTensor, ...]
) -> list[dict[str, Any]]:
    """Return the steps in ModelConfig's form.

    A tensor between two steps is prefixed with the step that produces it: a network's input may have the name of a
    picture's, and clients cannot request a tensor by mistake. Unused outputs are not mapped, since Triton refuses them.
    """
    needed = _needed(steps, outputs)
    last_giver = {tensor.name: step.name for step in steps for tensor in step.outputs}
    ends = {tensor.name for tensor in outputs}
    at = {tensor.name: tensor.name for tensor in inputs}
    fields = []
    for step, used in zip(steps, needed, strict=True):
        taken = {tensor.name: at[tensor.name] for tensor in step.inputs}
        renamed = {
            name: name if name in ends and last_giver[name] == step.name else f"{step.name}.{name}" for name in used
        }
        at |= renamed
        fields.append({"model_name": step.name, "model_version": -1, "input_map": taken, "output_map": renamed})
    return fields


def _needed(steps: Sequence[DeployedModel], outputs: tuple[TritonTensor, ...]) -> list[list[str]]:
    """Return, for each step, the outputs that a later step or the client uses."""
    wanted = {tensor.name for tensor in outputs}
    needed = []
    for step in reversed(steps):
        names = [tensor.name for tensor in step.outputs if tensor.name in wanted]
        wanted = (wanted - set(names)) | {tensor.name for tensor in step.inputs}
        needed.append(names)
    return needed[::-1]
