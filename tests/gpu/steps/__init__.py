"""The steps in order: whether TensorRT loads, then those without TensorRT, then engines, the most important first.

Times are estimates for a data center GPU.
"""

from __future__ import annotations

from dataclasses import replace

from tests.gpu.step import Step

_SPEED = "How fast is a decode step of {}, compared with the bandwidth's ceiling? Does it follow the lengths of caches?"
_VISION = "Does {} compute what the reference executor does, and how fast, compared with torch?"


def _decode(model: str, precision: str, estimate_s: int) -> Step:
    question, options = _SPEED.format(f"{model} in {precision}"), {"model": model, "precision": precision}
    return Step(f"decode-{model}-{precision}", question, "decode:ask", estimate_s, options)


def _vision(model: str, estimate_s: int, *, has_batches: bool = True) -> Step:
    options = {"model": model, "has_batches": has_batches}
    return Step(f"vision-{model}", _VISION.format(model), "vision:ask", estimate_s, options)


def _detector(model: str, estimate_s: int) -> Step:
    question = f"Does {model} compute what the reference executor does, and how fast?"
    return Step(f"detector-{model}", question, "detectors:ask", estimate_s, {"model": model})


def _simulated(step: Step, question: str) -> Step:
    """Return a step that runs trtkit's runtime with TensorRT simulated; streams, graphs and memory are the GPU's."""
    name = "decode" if step.name == _DECODED else step.name
    return replace(step, name=f"simulated-{name}", question=question, estimate_s=30, simulates=True)


_DECODED = "decode-smollm2-135m-fp16"
_RUNTIME = {
    "load": "With TensorRT simulated: does a small engine open and compute?",
    "families": "With TensorRT simulated: does each decoder family generate the reference decoder's tokens?",
    _DECODED: "With TensorRT simulated, on a tiny model: do decode steps and prompts run, captured and not?",
    "decode-window": "With TensorRT simulated, on a tiny model: do they with `llm.kv_window: used`?",
    "loop": "With TensorRT simulated, on a tiny model: does the engine run a step ahead, sampling in its graph?",
    "pages": "With TensorRT simulated, on a tiny model: do pages that are copied change no token?",
    "streaming": "With TensorRT simulated, on a tiny model: do models that sleep free their memory, and wake?",
    "serving": "With TensorRT simulated: do preemption, host memory, adapters and two ranks change no token?",
}
_ENGINES = (
    Step("load", "Does an engine that is built without a compute capability load and compute?", "load:ask", 20),
    _decode("smollm2-135m", "fp16", 50),
    Step("contract", "Is TensorRT's runtime as the simulated one assumes?", "contract:ask", 20),
    Step("attention", "Where is LOWER_RIGHT anchored with lengths? What does each mask cost?", "attention:ask", 30),
    _vision("resnet-50", 60),
    Step("families", "Does each decoder family generate the reference decoder's tokens?", "families:ask", 150),
    _decode("llama-1b", "fp16", 70),
    Step("features", "Do runtime caches, TF32 off, graph strategies and refit work?", "features:ask", 30),
    Step("decode-window", "Does a step with `llm.kv_window: used` follow the tokens in use?", "decode:ask", 50,
         {"model": "smollm2-135m", "precision": "fp16", "kv_window": "used"}),
    Step("loop", "What does a whole step of the generation engine cost, waiting and a step ahead?", "loop:ask", 80,
         {"model": "smollm2-135m"}),
    _decode("llama-1b", "int4", 70),
    _vision("vit-base", 60),
    _decode("llama-8b", "fp16", 240),
    Step("streaming", "What do budgets for weights save and cost? Do models that sleep free their memory?",
         "streaming:ask", 90),
    Step("pages", "Do pages change no token, copied and read by the plugin? How fast is a step?",
         "pages:ask", 150),
    Step("serving", "Do preemption, host memory, adapters and ranks change no token?", "serving:ask", 90),
    _vision("detr-r50", 120, has_batches=False),
    Step("collective", "Do collectives of one rank run? Rule 19.", "collective:ask", 25),
    _vision("mobilenet-v2", 60),
    _detector("ppocr-det", 40),
    _detector("ppocr-rec", 40),
    _detector("ppocr-cls", 20),
    _detector("yolo", 20),
    _detector("detr3d", 90),
    _detector("rt-detr-v2", 150),
    _decode("llama-8b", "int4", 240),
    Step("contract-faults", "And where a breach is an error that a GPU may not survive?", "contract_faults:ask", 25),
)  # fmt: skip
_BY_NAME = {step.name: step for step in _ENGINES}
_ALL = (
    Step("machine", "What are copies and matrix products at best?", "machine:ask", 12, needs="torch"),
    _BY_NAME.pop("load"),
    *(_simulated(step, _RUNTIME[step.name]) for step in _ENGINES if step.name in _RUNTIME),
    Step("kernels", "Do custom ops' kernels compute their references, and how fast?", "kernels:ask", 90,
         needs="kernels"),
    Step("sampling", "Does the sampling kernel draw the CPU's tokens? How fast is it?", "sampling:ask", 30,
         needs="kernels"),
    Step("rivals", "How fast is transformers, with a static cache and torch.compile?", "rivals:ask", 90,
         {"model": "smollm2-135m"}, needs="torch"),
    *_BY_NAME.values(),
)  # fmt: skip
STEPS = {step.name: step for step in _ALL}
