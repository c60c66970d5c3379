"""The Python API: each function reads its arguments, calls one function of a package and returns its result.

Functions take a model as a path (a YAML file, the name of a shipped config, an .onnx or .gguf file, or a folder that
transformers or TensorRT-LLM saved), as the id of a model that `trtkit fetch` downloaded from Hugging Face's hub, or as
a ModelConfig. Keyword arguments that a function does not name are keys of the
config: `precision="fp16"`, `llm={"max_batch_size": 2}`, or with dots `**{"llm.max_batch_size": 2}`. A dict changes the
keys that it has. Every error is a TrtkitError.

`on_event` is called with each event of `trtkit.jobs.events`: a Phase that begins, a Step that is done, Progress.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.bundle.bundle import Bundle, is_bundle, is_bundle_folder, open_bundle
from trtkit.config.load import changed_config, find_model_config, is_hub_id
from trtkit.config.overrides import keyword_overrides
from trtkit.config.schema import ModelConfig
from trtkit.errors import BundleError, ConfigError
from trtkit.jobs.events import Phase, ignore
from trtkit.jobs.runner import new_runner
from trtkit.sources.hub import hub_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from trtkit.benchmarking.report import Report as BenchReport
    from trtkit.benchmarking.request import Load, ServedModel
    from trtkit.benchmarking.timing import Rules
    from trtkit.benchmarking.variants import VariantComparison
    from trtkit.builder.export import ExportFormat, ExportResult
    from trtkit.builder.presets import Preset
    from trtkit.builder.quantize import QuantizeResult
    from trtkit.deployment.triton.deploy import Deployment, Form
    from trtkit.jobs.events import Listener
    from trtkit.planning.report import Report as Plan
    from trtkit.runtime.model import RuntimeName
    from trtkit.serving_options import Runtime, ServingOptions
    from trtkit.sources.torch.module import ExampleInputs
    from trtkit.verification.evaluation import Evaluation
    from trtkit.verification.report import Report
    from trtkit.verification.task_evaluation import TaskEvaluation
    from trtkit.verification.vision_evaluation import VisionEvaluation

Source = str | Path | ModelConfig
AnyBundle = str | Path | Bundle


def load_config(model: Source, **keys: object) -> ModelConfig:
    """Return the config for `model`, with `keys` changed: complete, validated and frozen.

    Raises ConfigError that lists every problem, SourceError if the model does not exist, BundleError for a bundle.
    """
    if isinstance(model, ModelConfig):
        return changed_config(model, keys)
    name = str(model)
    return find_model_config(str(hub_folder(name)) if is_hub_id(name) else name, keyword_overrides(keys))


def build(
    model: Source | torch.nn.Module,
    out: str | Path | None = None,
    *,
    example_inputs: ExampleInputs | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    preset: Preset | None = None,
    use_cache: bool = True,
    on_event: Listener = ignore,
    **keys: object,
) -> Bundle:
    """Build an engine and return its bundle: the folder with the engine, its network and the manifest.

    model: also a PyTorch module, with a tensor for each of its inputs in `example_inputs`: one, several, or by the
    names of `forward`. shapes: its inputs' sizes with names for those that are dynamic, `{"images": ["batch", 3, 224,
    224]}`, which `profiles` gives ranges; those of the examples if None. The module, in evaluation mode, is written to
    an ONNX file next to the bundle and compared with it on the examples.
    out: the bundle's folder; `bundles/NAME` if None. preset: of a language model, what decides the keys that neither
    its config nor `keys` have. use_cache: whether an identical build may come from the cache.
    Raises ConfigError, SourceError, BuildError or another TrtkitError; `out` is then unchanged.
    """
    from trtkit.builder.build import build_bundle
    from trtkit.builder.presets import with_preset

    if isinstance(model, str | Path | ModelConfig):
        if example_inputs is not None or shapes is not None:
            raise ConfigError("`example_inputs` and `shapes` are for a PyTorch module", [], "leave them out")
        config = load_config(model, **keys)
    else:
        config = _config_of_module(model, example_inputs, shapes or {}, out, keys)
    if preset is not None:
        config = with_preset(config, preset).config
    folder = Path("bundles") / config.name if out is None else Path(out)
    return build_bundle(config, folder, new_runner(on_event), use_cache=use_cache).bundle


def _config_of_module(
    module: torch.nn.Module,
    examples: ExampleInputs | None,
    shapes: Mapping[str, Sequence[int | str]],
    out: str | Path | None,
    keys: Mapping[str, object],
) -> ModelConfig:
    """Export a module to an ONNX file next to its bundle, and return the config of that."""
    if not hasattr(module, "forward"):
        what = f"expected a model's path, name, ModelConfig or PyTorch module, got {type(module).__name__}"
        raise ConfigError(what, [])
    if examples is None:
        fix = "give a tensor for each input, such as `example_inputs=torch.zeros(1, 3, 224, 224)`"
        raise ConfigError("a PyTorch module needs `example_inputs`", [], fix)
    from trtkit.sources.torch.module import export_module

    name = str(keys.get("name") or type(module).__name__.lower())
    folder = Path("bundles") / name if out is None else Path(out)
    file = folder.with_name(f"{folder.name}.onnx")
    export_module(module, examples, shapes, file)
    return load_config(file, **{**keys, "name": name})


def verify(
    model: Source | Bundle,
    *,
    inputs: Sequence[str | Path] = (),
    against: str | None = None,
    layers: bool | None = None,
    corners: bool = True,
    text: str | Path | None = None,
    trust_source: bool = False,
    on_event: Listener = ignore,
    **keys: object,
) -> Report:
    """Compare the network of a bundle or a config with its reference, on the CPU; `report.passed` is the verdict.

    inputs: images, .npz files or folders; the config's if empty. For a language model: text files with one prompt per
    line.
    against: `onnxruntime` or `torch`; the source's own runtime if None.
    layers: whether to compare every layer; if None, only after a failure.
    corners: whether to run every profile's min, opt, max and random shapes too.
    text: a file to measure a language model's perplexity on.
    trust_source: whether to run the Python factory that a bundle names as its source.
    Raises TrtkitError if nothing can be compared; a network that is out of tolerance is a report, not an error.
    """
    from trtkit.deployment.make_known import verify_and_remember
    from trtkit.verification.verify import VerifySettings, verify_config

    paths = tuple(map(str, inputs))
    request = VerifySettings(paths, against, layers, corners, None if text is None else str(text), trust_source)
    network = _network(model, keys)
    runner = new_runner(on_event)
    if isinstance(network, Bundle):
        return verify_and_remember(network, request, runner)
    return verify_config(network, request, runner)


def quantize(
    model: Source,
    method: str | None = None,
    out: str | Path | None = None,
    *,
    calibration: str | Path | None = None,
    sensitivity: bool = False,
    budget: str | None = None,
    fallback: str | None = None,
    on_event: Listener = ignore,
    **keys: object,
) -> QuantizeResult:
    """Quantize a model into a folder; `build(model, source=result.source)` builds it.

    A language model becomes a checkpoint in ModelOpt's format, a vision model an ONNX file with Q/DQ.

    method: such as `int8_wo`; the config's if None. out: `quantized/NAME-METHOD` if None.
    calibration: text, images or .npz files to measure activations on; the config's if None.
    sensitivity: whether to measure the loss of each layer of a language model.
    budget: limit to meet by skipping the layers that lose the most: `5.5bits` per weight, `80MiB` or `0.02nats`.
    fallback: the method for skipped layers; they stay in 16 bits if None.
    Raises ConfigError, QuantizeError or another TrtkitError; `out` is then unchanged.
    """
    from trtkit.builder.quantize import quantize_model
    from trtkit.quantization.jobs import ScoringRequest

    settings = {"quantize.method": method, "quantize.calibration.data": calibration}
    changes = {key: value for key, value in settings.items() if value is not None}
    config = load_config(model, **{**keys, **changes})
    scoring = ScoringRequest(sensitivity, budget, fallback)
    return quantize_model(config, None if out is None else Path(out), new_runner(on_event), scoring)


def export(
    model: Source,
    to: ExportFormat,
    out: str | Path | None = None,
    *,
    requantize: bool = False,
    on_event: Listener = ignore,
    **keys: object,
) -> ExportResult:
    """Write a language model as a checkpoint of another tool.

    to: `tensorrt-llm`. out: `exported/NAME-TO` if None.
    requantize: whether to round queries, keys and values in fp8 to one scale if theirs differ; they are refused if not.
    Raises ConfigError, SourceError or another TrtkitError; `out` is then unchanged.
    """
    from trtkit.builder.export import export_model

    path = None if out is None else Path(out)
    return export_model(load_config(model, **keys), to, path, new_runner(on_event), requantize=requantize)


def compare(
    model: Source,
    variants: Sequence[str],
    *,
    images: str | Path | None = None,
    truth: str | Path | None = None,
    text: str | Path | None = None,
    windows: int = 8,
    gpu: str = "l4",
    max_loss: float = 1.0,
    out: str | Path = "bundles",
    on_event: Listener = ignore,
    **keys: object,
) -> VariantComparison:
    """Compare precisions and quantization methods of a model; `verdict` says which to take.

    variants: such as `["fp32", "fp16", "int8"]`, the baseline first. images, truth: labelled pictures, as for
    `evaluate_images`. text, windows: of a language model, as for `evaluate`. gpu: to plan for.
    max_loss: against the baseline: points of the first measure on pictures, or percent of perplexity.
    out: folder of the bundles, each as NAME-VARIANT.
    Raises ConfigError for unknown variants and data of the wrong kind, and the errors of `build` and `evaluate`.
    """
    from trtkit.benchmarking.variants import VariantsRequest, compare_variants

    photos, answers, book = (None if path is None else Path(path) for path in (images, truth, text))
    request = VariantsRequest(tuple(variants), photos, answers, book, gpu, max_loss, windows)
    return compare_variants(load_config(model, **keys), Path(out), request, new_runner(on_event))


def plan(
    model: Source | Bundle,
    gpus: str | Sequence[str] = (),
    *,
    input_len: int | None = None,
    output_len: int | None = None,
    concurrency: int | None = None,
    prices: Mapping[str, float] | None = None,
    requests_per_second: float | None = None,
    on_event: Listener = ignore,
    **keys: object,
) -> Plan:
    """Estimate which GPUs fit a model and its best-case speed. No GPU and, for language models, no weights are needed.

    model: also a bundle, a folder with a `config.json`, or the name of a published model such as `llama-2-7b`.
    gpus: names from the table, such as `l4` or `["l4", "h100"]`; all if empty. input_len, output_len: tokens of a
    prompt and of its answer.
    concurrency: concurrent requests, or images. prices: per hour, by GPU. requests_per_second: the load, or images.
    Raises PlanError, ConfigError, SourceError.
    """
    from trtkit.planning.gpus import find_gpus, planned_gpus
    from trtkit.planning.plan import PlanRequest, make_plan
    from trtkit.planning.source import find_model, model_of_bundle, model_of_config

    table = find_gpus(gpus.split(",") if isinstance(gpus, str) else gpus) if gpus else planned_gpus()
    if isinstance(model, str | Path) and not is_bundle(Path(model).expanduser()):
        planned = find_model(str(model), keyword_overrides(keys))
    else:
        network = _network(model, keys)
        planned = model_of_bundle(network) if isinstance(network, Bundle) else model_of_config(network)
    request = PlanRequest(table, input_len, output_len, concurrency, prices, requests_per_second)
    return make_plan(planned, request, new_runner(on_event))


def deploy(
    bundle: AnyBundle,
    repository: str | Path,
    *,
    name: str = "",
    form: Form = "auto",
    recognizer: AnyBundle | None = None,
    release: str = "",
    is_dry_run: bool = False,
    on_event: Listener = ignore,
    **options: object,
) -> Deployment:
    """Deploy a bundle to a model repository of Triton Inference Server; `trtkit serve` starts a server on it.

    name: of the model; the bundle's if empty. form: `tensors` for the network's tensors, `pipeline` for images in and
    answers out, `auto` for the one that the config allows. recognizer: reads the lines of text that `bundle` detects.
    release: of Triton, `YY.MM`; what it cannot load is refused. is_dry_run: write nothing; see `differences`.
    options: keys of docs/deploy-options.md, such as `instances=2` or `queue={"delay_us": 500}`.
    Raises DeployError, BundleError, ConfigError for options; the repository is then unchanged.
    """
    from trtkit.deployment.triton.extra import require_extra

    require_extra()
    from trtkit.deployment.triton.deploy import DeployRequest
    from trtkit.deployment.triton.deploy import deploy as deploy_bundles
    from trtkit.deployment.triton.options import read_options

    reads = None if recognizer is None else open_bundle(recognizer)
    request = DeployRequest(open_bundle(bundle), name, form, reads, release)
    serving = read_options(keyword_overrides(options))

    def on_progress(text: str) -> None:
        on_event(Phase(text))

    return deploy_bundles(request, Path(repository), serving, on_progress, is_dry_run=is_dry_run)


def bench(
    model: Source | Bundle,
    *,
    compare: Sequence[str | Path] = (),
    batches: Sequence[int] = (),
    rules: Rules | None = None,
    load: Load | None = None,
    runtime: Runtime | ServingOptions = "auto",
    cuda_graphs: bool | None = None,
    server: str | ServedModel | None = None,
    is_unverified: bool = False,
    trust_source: bool = False,
    on_event: Listener = ignore,
    **keys: object,
) -> BenchReport:
    """Measure a bundle; a config is built into `bundles/NAME` first. Without a GPU, the reference executor runs it.

    compare: `torch`, `torch.compile`, `onnxruntime`, `transformers` or bundles, measured in the same rounds.
    batches: batch sizes of a vision model; its profiles' shapes if empty. rules: when to stop measuring a vision model.
    load: for a language model, or a vision model on a server: `trtkit.Load(concurrency=[1, 4], input_tokens=64)`.
    runtime: `tensorrt`, `reference` or `auto`; or ServingOptions, with more settings for language models.
    cuda_graphs: whether to capture and replay an engine's launches; if None, only those of decode steps.
    server: URL of a Triton server that has the bundle, or a ServedModel with its name there.
    is_unverified: measure a bundle even if its verification failed or is missing.
    trust_source: whether to run the Python factory that a bundle names as its source; a config's always may.
    Latencies in ms are in `report.cases`; printing the report shows the medians.
    Raises BenchError for what cannot be measured, and the errors of `build`.
    """
    from trtkit.benchmarking.request import BenchRequest, Load, ServedModel
    from trtkit.benchmarking.run import bench_bundle
    from trtkit.benchmarking.timing import Rules
    from trtkit.serving_options import ServingOptions

    network = _network(model, keys)
    request = BenchRequest(
        rivals=tuple(map(str, compare)),
        batches=tuple(batches),
        rules=rules or Rules(),
        load=load or Load(),
        options=runtime if isinstance(runtime, ServingOptions) else ServingOptions(runtime=runtime),
        has_cuda_graphs=cuda_graphs,
        server=ServedModel(server) if isinstance(server, str) else server,
        is_waived=is_unverified,
        trusts_source=trust_source or isinstance(network, ModelConfig),
    )
    bundle = build(network, on_event=on_event) if isinstance(network, ModelConfig) else network
    return bench_bundle(bundle, request, new_runner(on_event))


def evaluate(
    bundle: AnyBundle,
    text: str | Path | None = None,
    *,
    questions: bool = False,
    compare: AnyBundle | None = None,
    windows: int = 8,
    window_tokens: int = 512,
    runtime: Runtime = "auto",
    on_event: Listener = ignore,
) -> Evaluation:
    """Measure a language model: its perplexity per token on a text, and what quantization cost it.

    text: a UTF-8 file, read in windows. questions: ask 16 short questions whose answers can be checked.
    compare: the model as it was, which reads the same windows and answers the same questions.
    windows: how many to read, 0 for all. window_tokens: their length. runtime: `tensorrt`, `reference` or `auto`.
    Raises GenerationError, RequestError, BundleError.
    """
    from trtkit.verification.evaluation import EvaluationRequest, evaluate_bundle

    file = None if text is None else str(text)
    request = EvaluationRequest(file, questions, windows, window_tokens, runtime)
    return evaluate_bundle(bundle, request, new_runner(on_event), compare)


def evaluate_tasks(
    bundle: AnyBundle,
    tasks: Sequence[str],
    *,
    include_path: str | Path | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    apply_chat_template: bool = False,
    runtime: Runtime = "auto",
    on_event: Listener = ignore,
) -> TaskEvaluation:
    """Measure a language model on tasks of lm-evaluation-harness, which `trtkit[lm-eval]` brings.

    tasks: names or patterns of tasks, groups and tags. include_path: a folder with tasks of your own.
    num_fewshot: examples before each question; the task's own if None. limit: questions of each task, all if None.
    apply_chat_template: write prompts as conversations. runtime: as for `evaluate`.
    Raises SourceError, GenerationError, RequestError, BundleError, MissingPackageError.
    """
    from trtkit.verification.task_evaluation import TasksRequest, evaluate_tasks

    folder = None if include_path is None else Path(include_path)
    request = TasksRequest(tuple(tasks), folder, num_fewshot, limit, apply_chat_template, runtime)
    return evaluate_tasks(bundle, request, new_runner(on_event))


def evaluate_images(
    bundle: AnyBundle,
    images: str | Path,
    truth: str | Path | None = None,
    *,
    batch: int | None = None,
    conf: float | None = None,
    predictions: str | Path | None = None,
    runtime: RuntimeName = "auto",
    on_event: Listener = ignore,
) -> VisionEvaluation:
    """Measure a vision model on labelled pictures: top-1 and top-5, COCO's mAP, or characters of text, by its `task`.

    images: a folder; of one folder for each class if there is no `truth`. truth: a CSV file with the header
    `file,class` or `file,text`, or COCO's annotations.
    batch: pictures of a call, what the engine was tuned for if None. conf: the smallest score of a box in the confusion
    matrix, the config's if None. predictions: a file for what the model answers, JSON lines (.jsonl) or COCO's results
    (.json). runtime: as for `open_model`.
    Raises SourceError, BundleError, RequestError for a file of predictions that does not fit.
    """
    from trtkit.verification.vision_evaluation import VisionRequest, evaluate_vision

    answers, file = (None if path is None else Path(path) for path in (truth, predictions))
    request = VisionRequest(Path(images), answers, batch, runtime, file, conf)
    return evaluate_vision(bundle, request, new_runner(on_event))


def _network(model: Source | Bundle, keys: Mapping[str, object]) -> Bundle | ModelConfig:
    """Return the bundle, or the config, that `model` represents.

    Raises ConfigError for unknown keys, BundleError for a bundle with known ones.
    """
    if isinstance(model, ModelConfig) or (not isinstance(model, Bundle) and not is_bundle_folder(str(model))):
        return load_config(model, **keys)
    bundle = open_bundle(model)
    if keys:
        changed_config(bundle.manifest.config, keys)  # names unknown keys
        what = f"`{next(iter(keys))}` cannot be changed: the bundle is already built"
        raise BundleError(what, str(bundle.path), "give its config instead")
    return bundle
