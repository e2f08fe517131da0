"""Every planned training command of the native engine, started under a fake process group at its true world size.

Mesh, sharding, dtypes and bytes of a rank are compared with the plan's `execution` and its terms of memory.
"""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from planned_world import (
    EXAMPLES,
    LM,
    RECIPES,
    ROLES,
    TEMPLATES,
    TRAINED,
    architecture_of,
    commands_of,
    empty_module,
    fake_world,
    native_commands,
    project_at,
    report_of,
)

from charter.catalog import accelerators, models
from charter.models import parallel
from charter.models.adapters import add_adapter
from charter.models.engine_layout import StageLayout
from charter.models.parallel import own_part
from charter.models.ranks import Ranks
from charter.physics.memory import training_memory
from charter.plan.knowledge import shipped
from charter.spec.execution import TRAINER
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage
from charter.spec.stage import SftStage
from charter.spec.stage_base import StageResources
from charter.train import optimizers
from charter.units import GIB

pytestmark = pytest.mark.torch
SAMPLE = {"cai-8b": ("helpful", "pm"), "ppo-7b.yaml": ("ppo",)}
"""What `make test` starts: two tensor ranks, a scalar head, four roles with everything offloaded."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
CLOSE = 0.005
"""Vectors and uneven rows, which the plan divides without a rest."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in SAMPLE else [pytest.mark.thorough])
        for name in (*TEMPLATES, *RECIPES, *EXAMPLES)
    ],
)
def test_planned_commands_start_as_planned(name, tmp_path):
    started = [command.stage for command in check_commands(name, tmp_path, SAMPLE.get(name))]
    print(f"STARTED {name}: {', '.join(started) or 'nothing of the native engine'}")


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAMPLE)
def test_all_commands_of_the_sample_start_too(name, tmp_path):
    assert len([*check_commands(name, tmp_path, None)]) >= len(SAMPLE[name])


def test_a_stage_whose_rows_are_shared_starts_as_planned(tmp_path):
    root = tmp_path / "project"
    project = project_at("cai-8b", root)
    stage = project.pipeline["helpful"]
    asked = replace(stage, resources=replace(stage.resources or StageResources(), context=2))
    project = replace(project, pipeline={**project.pipeline, "helpful": asked})
    (command,) = (item for item in commands_of(project, root) if item.stage == "helpful")
    assert command.layout.context == 2
    check(command)


def check_commands(name, root, stages):
    for command in native_commands(name, root / "project"):
        if stages is None or command.stage in stages:
            check(command)
            yield command


def check(command):
    stage, layout = command.plan.stage(command.stage), command.layout
    spec, (entry,) = (
        command.project.pipeline[command.stage],
        [item for item in command.plan.to_json()["stages"] if item["name"] == command.stage],
    )
    role = entry["execution"]["roles"][TRAINER]
    planned = role["layout"]
    assert command.world_size == layout.world_size == role["nodes"] * role["accelerators_per_node"]
    for field in ("data", "tensor", "context", "zero", "micro_batch", "recompute", "offload", "offload_activations"):
        assert getattr(layout, field) == planned[field], field
    terms = {term.name: term.value for term in stage.option.peak.terms}
    is_of_answers = "policy: keys and values" in terms
    """The peak is where answers are drawn, before there are gradients."""
    away = 0
    with fake_world(command.world_size):
        for name, field, top, mode in ROLES[spec.kind]:
            shape = architecture_of(command, field)
            if shape is None or not (mode == TRAINED or any(term.startswith(f"{name}: ") for term in terms)):
                continue  # a stage without this role
            report = report_of(command, shape, top, mode)
            sharing = planned["data"] * planned["context"]
            copies = planned["replicas"] if planned["zero"] else sharing
            mesh = {"replicate": copies, "shard": sharing // copies, "tensor": planned["tensor"]}
            assert report.mesh == {axis: size for axis, size in mesh.items() if size > 1 or axis == "shard"}
            # Rows that do not divide: the first rank has a row more than the mean.
            assert report.sharded_over == pytest.approx(sharing // copies * planned["tensor"], rel=0.01)
            assert report.gathered_dtype is DTYPES[planned["dtype"]]
            assert mode != TRAINED or report.summed_dtype is torch.float32
            assert report.kept_dtype is (torch.float32 if mode == TRAINED else DTYPES[planned["dtype"]])
            held = f"{name}: weights" if mode == TRAINED else f"{name}: frozen weights"
            if planned["offload"] == "all":
                assert held not in terms or mode != TRAINED, "planned on the host"
            else:
                assert report.weight_bytes == pytest.approx(terms[held], rel=CLOSE), held
                if mode == TRAINED:
                    own = terms.get(f"{name}: optimizer", 0.0)  # none where moments are on the host
                    away += 0 if own else report.optimizer_bytes
                    assert not own or report.optimizer_bytes == pytest.approx(own, rel=CLOSE)
                    if not is_of_answers:
                        assert report.weight_bytes == pytest.approx(terms[f"{name}: gradients"], rel=CLOSE)
    if planned["offload"] == "optimizer" and not planned["offload_activations"]:
        assert away == pytest.approx(stage.option.host_bytes, rel=2 * CLOSE), "of all roles"


LLAMA_70B = models.get("Llama-3.1-70B").architecture
LARGE = {
    "adapters on 8": (StageLayout(world_size=8, zero=3, recompute="full"), Adapter(rank=16)),
    "all weights on 24": (StageLayout(world_size=24, zero=3, recompute="full"), None),
    "all weights on 16": (StageLayout(world_size=16, zero=3, recompute="full", offload="optimizer"), None),
}


def bytes_of_a_rank(layout, adapter, monkeypatch):
    """What one rank of 70B holds, by the plan's names: weights, gradients, moments there and on the host."""
    at_home = []

    def noted(weight):
        at_home.append(own_part(weight).nbytes)
        return torch.zeros_like(weight, requires_grad=False)

    monkeypatch.setattr(optimizers, "_host_zeros", noted)
    with fake_world(layout.world_size):
        ranks = Ranks(world_size=layout.world_size, data_size=layout.data, device=torch.device("cuda", 0))
        module = empty_module(LLAMA_70B, LM)
        if adapter is not None:
            add_adapter(module, adapter, seed=1)
        spread = parallel.parallelize(module, layout, ranks, dtype="bf16")
        trained = spread.trained_parameters()
        on_host = parallel.moments_on_host(layout, ranks.device)
        optimizer = optimizers.make_optimizer([(trained, 1e-5)], SftStage(init="a", data=("d",)), on_host=on_host)
        moments = sum(own_part(optimizer.state[item][name]).nbytes for item in trained for name in optimizers.MOMENTS)
        frozen = sum(own_part(item).nbytes for item in module.parameters() if not item.requires_grad)
        own = sum(own_part(item).nbytes for item in trained)
    away = sum(at_home)
    return {"frozen base": frozen, "weights": own, "gradients": own, "optimizer": moments - away}, away


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if "16" in case else [pytest.mark.thorough]) for case in LARGE]
)
def test_70b_fits_as_planned(case, monkeypatch):
    """At its full depth, with no memory: each rank's bytes are those of the plan, which fit 80 GB."""
    layout, adapter = LARGE[case]
    h100 = accelerators.get("H100-SXM-80GB")

    def planned(*, away):
        asked = Layout(
            data=layout.data, zero=ZeroStage(layout.zero), recompute=Recompute(layout.recompute), offload_optimizer=away
        )
        return training_memory(LLAMA_70B, asked, seq_len=4096, adapter=adapter, accelerator=h100)

    away = layout.offload == "optimizer"
    plan, held = planned(away=away), bytes_of_a_rank(layout, adapter, monkeypatch)
    terms = {term.name: term.value for term in plan.phases["end of backward"]}
    for name, size in held[0].items():
        assert size == pytest.approx(terms.get(name, 0.0), rel=CLOSE), name
    host = {term.name: term.value for term in planned(away=False).phases["end of backward"]}["optimizer"] * away
    assert held[1] == pytest.approx(host, rel=CLOSE)
    here = sum(held[0].values()) / GIB
    print(f"HELD {case}: {here:.2f} GiB, {held[1] / GIB:.2f} on the host; planned peak {plan.total / GIB:.1f}")
    assert plan.total < shipped().usable_bytes(h100)
