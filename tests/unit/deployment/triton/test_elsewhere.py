from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from trtkit import __version__
from trtkit.deployment.triton.compatibility import find_release, newest_release
from trtkit.deployment.triton.elsewhere import (
    ContainerFacts,
    container_facts,
    docker_command,
    dockerfile,
)
from trtkit.deployment.triton.endpoints import Endpoints
from trtkit.deployment.triton.local_server import ServeOptions, server_flags
from trtkit.deployment.triton.repository_check import read_repository
from trtkit.errors import DeployError

DOCKER = """\
docker run --rm \\
  --gpus 1 \\
  --shm-size=1024m --cap-drop=ALL --security-opt=no-new-privileges \\
  -p 127.0.0.1:8000:8000 \\
  -p 127.0.0.1:8001:8001 \\
  -p 127.0.0.1:8002:8002 \\
  -v '/srv/my models:/models:ro' \\
  nvcr.io/nvidia/tritonserver:26.07-py3 \\
  tritonserver --model-repository=/models --model-control-mode=none"""


def deployed(repository: Path, name: str, backend: str, library: tuple[str, str], ranks: int = 1) -> None:
    """Write a model's folder as `trtkit deploy` leaves it, as far as the container depends on it."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "{backend}"\n')
    record: dict[str, Any] = {
        "backend": backend,
        "backend_library": dict(zip(("name", "version"), library, strict=True)),
        "ranks": ranks,
    }
    (version / "deployment.json").write_text(json.dumps(record))


def facts_of(repository: Path) -> ContainerFacts:
    return container_facts(read_repository(repository))


def test_the_container_is_reached_from_this_machine_alone_and_writes_nothing() -> None:
    line = docker_command(ContainerFacts(find_release("26.07"), needs_trtkit=False), Path("/srv/my models"))
    assert line == DOCKER
    assert shlex.split(line.replace("\\\n", ""))[-1] == "--model-control-mode=none"


def test_a_model_of_several_ranks_has_a_gpu_for_each(tmp_path: Path) -> None:
    deployed(tmp_path, "small", "python", ("tensorrt_rtx", "1.7.1.116"))
    assert facts_of(tmp_path).gpus == 1
    deployed(tmp_path, "large", "python", ("tensorrt_rtx", "1.7.1.116"), ranks=4)
    assert facts_of(tmp_path).gpus == 4


def test_ports_flags_and_gpus_are_the_callers() -> None:
    facts = ContainerFacts(find_release("26.07"), needs_trtkit=False, gpus=0, flags=("--rate-limit=execution_count",))
    line = docker_command(facts, Path("/srv/models"), Endpoints("10.0.0.7", 9000, 9001, 9002))
    assert "--gpus" not in line
    assert "-p 10.0.0.7:9000:8000" in line
    assert line.endswith("--rate-limit=execution_count")


def test_models_on_trtkits_runtime_need_an_image_with_trtkit(tmp_path: Path) -> None:
    deployed(tmp_path, "tiny", "python", ("tensorrt_rtx", "1.7.1.116"))
    facts = facts_of(tmp_path)
    assert facts == ContainerFacts(newest_release(), needs_trtkit=True)
    lines = dockerfile(facts).splitlines()
    assert lines[0].endswith(f"docker build -t {facts.image} -f Dockerfile .")
    assert lines[1] == f"FROM {newest_release().image}"
    wheel = f"trtkit-{__version__}-py3-none-any.whl"
    assert lines[2] == f"COPY {wheel} /tmp/{wheel}"
    assert f"'/tmp/{wheel}[" in lines[3]
    assert facts.image in docker_command(facts, tmp_path)


def test_a_plan_decides_the_release(tmp_path: Path) -> None:
    deployed(tmp_path, "native", "tensorrt", ("tensorrt", "11.1.0.106"))
    assert facts_of(tmp_path) == ContainerFacts(find_release("26.07"), needs_trtkit=False)


def test_plans_of_two_releases_cannot_be_served_together(tmp_path: Path) -> None:
    deployed(tmp_path, "new", "tensorrt", ("tensorrt", "11.1.0.106"))
    deployed(tmp_path, "old", "tensorrt", ("tensorrt", "10.15.1.29"))
    with pytest.raises(DeployError) as error:
        facts_of(tmp_path)
    assert str(error.value) == "the models need different Triton releases: 26.02, 26.07\nfix: serve them separately"


def test_the_server_is_started_with_the_flags_of_its_options() -> None:
    flags = server_flags(ServeOptions(Path("/srv/models"), control_mode="explicit", load=("tiny",)))
    assert flags[0] == "--model-repository=/srv/models"
    assert {"--http-address=127.0.0.1", "--model-control-mode=explicit", "--load-model=tiny"} <= set(flags)
