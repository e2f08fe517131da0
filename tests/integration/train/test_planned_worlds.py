"""Every planned training command of the native engine, started under a fake process group at its true world size.

Mesh, sharding, dtypes and bytes of a rank are compared with the plan's `execution` and its terms of memory.
"""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from planned_world import (
    EXAMPLES,
    RECIPES,
    ROLES,
    TEMPLATES,
    TRAINED,
    architecture_of,
    fake_world,
    native_commands,
    report_of,
)

from charter.spec.execution import TRAINER

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
    for field in ("data", "tensor", "zero", "micro_batch", "recompute", "offload"):
        assert getattr(layout, field) == planned[field], field
    terms = {term.name: term.value for term in stage.option.peak.terms}
    with fake_world(command.world_size):
        for name, field, top, mode in ROLES[spec.kind]:
            shape = architecture_of(command, field)
            if shape is None or not (mode == TRAINED or any(term.startswith(f"{name}: ") for term in terms)):
                continue  # a stage without this role
            report = report_of(command, shape, top, mode)
            copies = planned["replicas"] if planned["zero"] else planned["data"]
            mesh = {"replicate": copies, "shard": planned["data"] // copies, "tensor": planned["tensor"]}
            assert report.mesh == {axis: size for axis, size in mesh.items() if size > 1 or axis == "shard"}
            # Rows that do not divide: the first rank has a row more than the mean.
            assert report.sharded_over == pytest.approx(planned["data"] // copies * planned["tensor"], rel=0.01)
            assert report.gathered_dtype is DTYPES[planned["dtype"]]
            assert mode != TRAINED or report.summed_dtype is torch.float32
            assert report.kept_dtype is (torch.float32 if mode == TRAINED else DTYPES[planned["dtype"]])
            held = f"{name}: weights" if mode == TRAINED else f"{name}: frozen weights"
            if planned["offload"] == "all":
                assert held not in terms or mode != TRAINED, "planned on the host"
            else:
                assert report.weight_bytes == pytest.approx(terms[held], rel=CLOSE), held
                if mode == TRAINED:
                    assert report.optimizer_bytes == pytest.approx(terms[f"{name}: optimizer"], rel=CLOSE)
                    assert report.weight_bytes == pytest.approx(terms[f"{name}: gradients"], rel=CLOSE)
