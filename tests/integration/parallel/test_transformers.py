"""transformers' own tensor parallelism, as an oracle: its plan of what each rank holds, and its logits on two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from fnmatch import fnmatch
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from tests.integration.parallel.test_networks import IDS, SHARED
from tests.support.decoders import model_of, relative_rms
from tests.support.parallel import Ranks
from trtkit.models.parallel import Grid, rank_spec
from trtkit.models.rank_weights import RankWeights
from trtkit.models.weights import find_weights

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoder_case import Case
    from trtkit.models.spec import DecoderSpec

# Which axis of a matrix [out, in] transformers splits. What it gathers again, it stores split all the same.
AXES = {"colwise": 0, "colwise_gather_output": 0, "rowwise": 1, "rowwise_split_input": 1}
REPLICATED = "replicated_with_grad_allreduce"
FUSED = ("qkv", "gate_up")  # transformers gathers these before it takes them apart; trtkit splits them by head
RECURRENT = ("delta", "mamba")  # and these, whose states trtkit splits by head
RUN = """
import json, sys, torch, torch.distributed as dist
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], tp_plan="auto", attn_implementation="eager").eval()
with torch.no_grad():
    logits = model(torch.tensor(json.loads(sys.argv[2]))).logits
if dist.get_rank() == 0:
    torch.save(logits, sys.argv[3])
dist.destroy_process_group()
"""


def plan_of(case: Case) -> dict[str, str]:
    plan = getattr(AutoConfig.for_model(case.model_type, **case.config), "base_model_tp_plan", None)
    return dict(plan or {})


def has_plan(case: Case) -> bool:
    return any(kind in AXES and ".experts" not in module for module, kind in plan_of(case).items())


def is_held_alike(path: str, spec: DecoderSpec, ranks: int) -> bool:
    """Return whether trtkit and transformers mean to hold the same share of this weight."""
    parts = path.split(".")
    if not path.endswith(".weight") or parts[-2] in FUSED or "experts" in parts or set(parts) & set(RECURRENT):
        return False
    is_key_or_value = parts[0] == "layers" and parts[2:4] in (["attention", "k"], ["attention", "v"])
    return not is_key_or_value or spec.layers[int(parts[1])].attention.num_key_value_heads >= ranks


PLANNED = [case for case in SHARED if has_plan(case)]


@pytest.mark.parametrize("case", PLANNED, ids=str)
def test_ranks_hold_what_transformers_plans(case: Case) -> None:
    model, plan, compared = model_of(case), plan_of(case), set()
    weights = find_weights(model.spec, model.checkpoint)
    for rank in range(2):
        own = RankWeights(model.spec, rank_spec(model.spec, Grid(2), rank), weights)
        for path in own:
            if not is_held_alike(path, model.spec, 2):
                continue
            module = weights.name_of(path).removesuffix(".weight").removeprefix(model.spec.prefix)
            kind = next((kind for pattern, kind in plan.items() if fnmatch(module, pattern)), None)
            if kind not in (*AXES, REPLICATED):
                continue
            whole = np.asarray(weights[path])
            expected = whole if kind == REPLICATED else np.array_split(whole, 2, AXES[kind])[rank]
            assert np.array_equal(np.asarray(own[path]), expected), f"{path}: {kind}"
            compared.add(kind)
    assert compared & set(AXES)


def test_most_families_have_a_plan() -> None:
    assert len({case.model_type for case in PLANNED}) >= 14


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-biases", "qwen3", "mixtral"])
def test_logits_are_those_of_transformers_on_two_ranks(name: str, tmp_path: Path) -> None:
    """Two processes of torchrun, which exchange by gloo."""
    case = next(case for case in SHARED if case.name == name)
    model = model_of(case)
    model.hf.save_pretrained(tmp_path / "model")
    (tmp_path / "run.py").write_text(RUN)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [tmp_path / "run.py", tmp_path / "model", json.dumps(IDS.tolist()), tmp_path / "logits.pt"]
    ran = subprocess.run([*launcher, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    ranks = Ranks(model, Grid(2))
    ranks.reset(3)
    assert relative_rms(ranks.step(IDS)[0], torch.load(tmp_path / "logits.pt")) <= 1e-5
