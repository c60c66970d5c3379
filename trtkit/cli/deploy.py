"""`trtkit deploy`."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli import completions
from trtkit.cli.local_model import local_bundle, yes_option
from trtkit.cli.options import json_option, quiet_option
from trtkit.cli.say import say
from trtkit.cli.visible import echo

if TYPE_CHECKING:
    from trtkit.deployment.triton.deploy import Deployment

Options = dict[str, Any]
EPILOG = """\b
Examples:
  trtkit deploy bundles/efficientnet-lite0 --to triton --repository models
  trtkit deploy bundles/llama --to triton --repository models --name chat
  trtkit deploy bundles/resnet50 --repository models --as tensors --dry-run
  trtkit deploy bundles/vit --to triton --repository models --instances 2 \\
      --set queue.delay_us=500 --set response_cache=true
  trtkit deploy bundles/llama --repository models --kubernetes manifests
  trtkit deploy bundles/llama --to dynamo --kubernetes manifests
  trtkit deploy bundles/ppocr-det --recognizer bundles/ppocr-rec --name ocr \\
      --repository models
  trtkit deploy --rollback chat --repository models

\b
Then:
  trtkit serve models
  trtkit check localhost:8000 --bundle bundles/efficientnet-lite0

\b
Deploying again adds a version; it goes live once config.pbtxt is replaced.
Exit codes: 0 done, 1 failed, 2 wrong usage or options."""


@click.command(epilog=EPILOG)
@click.argument("bundle", required=False, shell_complete=completions.bundles)
@yes_option
@click.option("--to", type=click.Choice(["triton", "dynamo"]), default="triton", show_default=True, help="Server.")
@click.option(
    "--repository",
    metavar="DIR",
    help="Triton's model repository; created if missing.",
    shell_complete=completions.folders,
)
@click.option("--name", default="", metavar="NAME", help="Model name.  [default: the bundle's]")
@click.option(
    "--as",
    "form",
    type=click.Choice(["auto", "tensors", "pipeline"]),
    default="auto",
    show_default=True,
    help="Vision models: raw tensors, or images in and answers out.",
)
@click.option(
    "--recognizer",
    metavar="BUNDLE",
    help="Text recognizer for the lines that BUNDLE, a text detector, finds.",
    shell_complete=completions.bundles,
)
@click.option("--release", default="", metavar="YY.MM", help="Fail on anything this Triton release cannot load.")
@click.option("--kubernetes", metavar="DIR", help="Write Kubernetes manifests and a Dockerfile.")
@click.option(
    "--gpus-per-node",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    metavar="N",
    help="GPUs of a cluster's node, for a model whose ranks take several nodes.",
)
@click.option("--instances", type=click.IntRange(1), metavar="N", help="Model instances per device.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a serving option.",
    shell_complete=completions.serving_keys,
)
@click.option(
    "--rollback",
    metavar="MODEL",
    help="Instead of deploying, serve an earlier version of a model of --repository, and what was deployed with it.",
)
@click.option(
    "--to-version",
    type=click.IntRange(1),
    metavar="N",
    help="With --rollback: the version.  [default: the one before those served]",
)
@click.option("--dry-run", is_flag=True, help="Show what would change without writing anything.")
@json_option
@quiet_option
def command(
    bundle: str | None,
    to: str,
    rollback: str | None,
    to_version: int | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Deploy a bundle to a model repository of Triton Inference Server, or a language model to Kubernetes.

    Writes config.pbtxt with BUNDLE's engine, or with a model that runs on trtkit's runtime, and prints which and why.
    If the config defines pre- and postprocessing, the model takes images and returns answers. Language models stream,
    with the input and output names of TensorRT-LLM's Triton backend.

    --to dynamo writes the manifests of pods that run `trtkit serve BUNDLE`, each with --instances workers.
    """
    if rollback is not None:
        if bundle is not None or options["repository"] is None or options["dry_run"]:
            raise click.UsageError("--rollback needs --repository, and goes without BUNDLE and --dry-run")
        _roll_back(Path(options["repository"]), rollback, to_version, as_json=as_json)
        return
    if bundle is None or to_version is not None:
        raise click.UsageError("Missing argument 'BUNDLE'." if bundle is None else "--to-version needs --rollback")
    if to == "dynamo":
        _deploy_dynamo(local_bundle(bundle), options, as_json=as_json)
    elif options["repository"] is None:
        raise click.UsageError("--to triton needs --repository")
    else:
        _deploy_triton(local_bundle(bundle), options, as_json=as_json, quiet=options["quiet"] or as_json)


def _deploy_triton(bundle: str, options: Options, *, as_json: bool, quiet: bool) -> None:
    """Deploy to a Triton model repository."""
    from trtkit.deployment.triton.extra import require_extra

    require_extra()
    from trtkit.bundle.bundle import open_bundle
    from trtkit.deployment.triton.deploy import DeployRequest, deploy
    from trtkit.deployment.triton.options import read_options

    folder, instances, kubernetes = Path(options["repository"]), options["instances"], options["kubernetes"]
    serving = read_options([*options["overrides"], *([f"instances={instances}"] if instances else [])])
    reads = open_bundle(options["recognizer"]) if options["recognizer"] else None
    request = DeployRequest(open_bundle(bundle), options["name"], options["form"], reads, options["release"])

    def progress(text: str) -> None:
        if not quiet:
            say(f"  {text}")

    is_dry_run = options["dry_run"]
    deployment = deploy(request, folder, serving, progress, is_dry_run=is_dry_run)
    files = [] if is_dry_run or kubernetes is None else _write_cluster(deployment, folder, Path(kubernetes))
    if as_json:
        written = {"repository": str(folder), "dry_run": is_dry_run, "kubernetes": files}
        click.echo(json.dumps({**deployment.to_json(), **written}))
    elif is_dry_run:
        echo(deployment.differences)
    else:
        _print(deployment, folder)
        echo("".join(f"wrote {file}\n" for file in files), nl=False)


def _roll_back(repository: Path, name: str, version: int | None, *, as_json: bool) -> None:
    """Serve an earlier version of a model again."""
    from trtkit.deployment.triton.extra import require_extra

    require_extra()
    from trtkit.deployment.triton.rollback import roll_back

    changed = roll_back(repository, name, version)
    if as_json:
        click.echo(json.dumps({"repository": str(repository), "models": [asdict(model) for model in changed]}))
        return
    for model in changed:
        echo(f"{model.model}  version {model.version}, instead of {', '.join(map(str, model.before))}")
    echo("a running server serves it after its next load or restart")


def _deploy_dynamo(bundle: str, options: Options, *, as_json: bool) -> None:
    """Write Kubernetes manifests for pods that run `trtkit serve`."""
    from trtkit.deployment.dynamo.kubernetes import cluster_facts, write_manifests
    from trtkit.deployment.dynamo.model_folder import read_model

    kubernetes = options["kubernetes"]
    if kubernetes is None:
        raise click.UsageError("--to dynamo needs --kubernetes; `trtkit serve BUNDLE` serves on this machine")
    model = read_model(Path(bundle), options["name"])
    facts = cluster_facts(model, options["instances"] or 1, options["gpus_per_node"])
    files = [str(file) for file in write_manifests(facts, Path(kubernetes))]
    if as_json:
        click.echo(json.dumps({"name": facts.name, "model": facts.model, "kubernetes": files}))
        return
    echo("".join(f"wrote {file}\n" for file in files), nl=False)
    echo(f"next: copy the bundle into the volume `{facts.name}`, build the image, `kubectl apply -f {kubernetes}`")


def _write_cluster(deployment: Deployment, repository: Path, folder: Path) -> list[str]:
    from trtkit.deployment.triton.elsewhere import write_cluster

    return [str(file) for file in write_cluster(repository, deployment.placements[-1].model.name, folder)]


def _print(deployment: Deployment, repository: Path) -> None:
    """Print what was deployed and how to use it."""
    from trtkit.deployment.triton.elsewhere import container_notes

    for placement in deployment.placements:
        served = ", ".join(map(str, placement.served))
        echo(f"{placement.model.name}  version {placement.version}, {placement.model.backend}; serves {served}")
    for reason in (reason for placement in deployment.placements for reason in placement.model.reasons):
        echo(f"  {reason}")
    for note in (*deployment.notes, *container_notes(repository)):
        echo(f"  {note}")
    echo(f"next: trtkit serve {shlex.quote(str(repository))}")
