"""Planned training commands, started at their true world size: torch's fake process group, true shapes on meta.

What a launcher would run is parsed from the job's own command; the models of the stage are made without memory and
spread by the engine's own code, which believes that it has accelerators. Nothing is copied and no collective waits.
"""

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig, LlamaForCausalLM

from charter.engines.project import load_project
from charter.launch.job import module_of
from charter.launch.submission import preview_job
from charter.models import parallel
from charter.models.engine_layout import StageLayout, engine_layout
from charter.models.parallel import own_part
from charter.models.preference import ScalarModel
from charter.models.ranks import Ranks
from charter.models.sharded_load import empty_parameters, tie, tied_weights
from charter.plan.plan import Plan
from charter.plan.project_plan import read_inputs
from charter.run.graph import build_pipeline, with_project
from charter.run.planned import plan_of_run, resolved_project
from charter.spec.architecture import Architecture
from charter.spec.project import Project
from charter.spec.stage_base import NATIVE
from charter.templates.shipped import find_template, write_template
from charter.train.optimizers import make_optimizer

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ("cai-8b", "cai-70b", "rlaif-8b", "grpo-7b", "constitution-rl-8b")
RECIPES = tuple(sorted(path.name for path in (ROOT / "recipes").iterdir() if path.is_dir()))
NOT_FITTING = "ppo-72b.yaml"
EXAMPLES = tuple(sorted({path.name for path in (ROOT / "docs" / "examples").glob("*.yaml")} - {NOT_FITTING}))
TRAINED, FROZEN, LM, SCALAR = "trained", "frozen", "lm", "scalar"
ROLES: Mapping[str, tuple[tuple[str, str, str, str], ...]] = {
    "pretrain": (("model", "init", LM, TRAINED),),
    "sft": (("model", "init", LM, TRAINED),),
    "preference_model": (("model", "init", SCALAR, TRAINED),),
    "ppo": (
        ("policy", "policy", LM, TRAINED),
        ("value", "reward", SCALAR, TRAINED),
        ("reference", "policy", LM, FROZEN),
        ("reward", "reward", SCALAR, FROZEN),
    ),
}
"""Kind of stage -> role as the plan names it, the field that says its model, what is on top, whether it is trained."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One planned training command, with what was planned for it."""

    project: Project
    root: Path
    plan: Plan
    stage: str
    words: tuple[str, ...]

    @property
    def world_size(self) -> int:
        """Ranks that the command starts over all its nodes."""
        options = dict(pairwise(self.words))
        return int(options.get("--nodes", 1)) * int(options.get("--processes", 1))

    @property
    def layout(self) -> StageLayout:
        """Layout of the command, as the engine reads its frozen values."""
        written = dict(pairwise(self.words)).get("--layout", "")
        return engine_layout(dict(word.split("=") for word in written.split(",") if word))


@dataclass(frozen=True, kw_only=True)
class RoleReport:
    """A rank's view of one role."""

    mesh: Mapping[str, int]
    sharded_over: int
    """Ranks that divide the largest matrix between them."""
    kept_dtype: torch.dtype
    gathered_dtype: torch.dtype
    summed_dtype: torch.dtype
    """Of gradients that are added up over ranks."""
    weight_bytes: int
    optimizer_bytes: int


def project_at(name: str, root: Path) -> Project:
    """A template, recipe or example, written to a directory."""
    if name in TEMPLATES:
        write_template(find_template(name), root)
    elif name in RECIPES:
        shutil.copytree(ROOT / "recipes" / name, root, ignore=shutil.ignore_patterns("run"))
    else:
        root.mkdir()
        for path in (ROOT / "docs" / "examples").iterdir():
            if path.suffix != ".yaml":
                shutil.copy(path, root)
        shutil.copy(ROOT / "docs" / "examples" / name, root / "charter.yaml")
    return load_project(root / "charter.yaml")


def native_commands(name: str, root: Path) -> Iterator[Command]:
    """Commands of the stages that the native engine trains on accelerators; other engines have starts of their own."""
    yield from commands_of(project_at(name, root), root)


def commands_of(project: Project, root: Path) -> Iterator[Command]:
    """The same of a project that has been read."""
    pipeline = build_pipeline(project, root)
    planned = plan_of_run(pipeline)
    assert planned.plan is not None, planned.problem
    project, _ = resolved_project(pipeline, planned, "slurm")
    pipeline = with_project(pipeline, project)
    for stage in planned.plan.stages:
        spec = project.pipeline[stage.name]
        if spec.kind not in ROLES or stage.option.engine != NATIVE or stage.option.place.is_cpu:
            continue
        item = pipeline.stages[stage.name]
        job = preview_job(project, stage.name, item.directory, scheduler="slurm", module=module_of(item.spec), pools={})
        yield Command(project=project, root=root, plan=planned.plan, stage=stage.name, words=job.command)


def architecture_of(command: Command, field: str) -> Architecture | None:
    """Shape of the model that a field names, through the stages that it comes from."""
    name = getattr(command.project.pipeline[command.stage], field, None)
    while name in command.project.pipeline:
        spec: Any = command.project.pipeline[name]
        name = getattr(spec, "init", None) or getattr(spec, "policy", None)
    return read_inputs(command.project, command.root).architectures.get(name) if name else None


def empty_module(shape: Architecture, top: str) -> nn.Module:
    """The decoder of a shape, on meta, as a language model or with a score on top."""
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=shape.max_position_embeddings,
        tie_word_embeddings=shape.tied_embeddings,
        attention_bias=shape.attention_bias,
    )
    with empty_parameters():
        model = LlamaForCausalLM(config)
        if top == LM:
            return model
        return ScalarModel(type("Holder", (), {"model": model})())


@contextmanager
def fake_world(world_size: int) -> Iterator[None]:
    """Rank 0 of a world of which no other rank is there, on an accelerator that is not there either."""
    with pytest.MonkeyPatch.context() as patched:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
        mesh = parallel.data_mesh
        patched.setattr(parallel, "data_mesh", lambda layout, ranks: mesh(layout, Ranks(world_size=world_size)))
        patched.setattr(parallel, "fill_weights", lambda *_, **__: None)
        patched.setattr(sys.modules["torch.optim.optimizer"], "_get_fused_kernels_supported_devices", lambda: ["meta"])
        try:
            yield
        finally:
            dist.destroy_process_group()


def report_of(command: Command, shape: Architecture, top: str, mode: str) -> RoleReport:
    """One role, spread by the engine's own code as on accelerators."""
    layout, spec = command.layout, command.project.pipeline[command.stage]
    ranks = Ranks(world_size=layout.world_size, data_size=layout.data, device=torch.device("cuda", 0))
    module = empty_module(shape, top)
    ties = tied_weights(module)
    parallel.parallelize(module, layout, ranks, dtype=spec.dtype, trained=mode == TRAINED)
    tie(module, ties)
    matrix = max((item for item in module.parameters() if isinstance(item, DTensor)), key=lambda item: item.numel())
    states = 0
    if mode == TRAINED:
        optimizer = make_optimizer([(list(module.parameters()), 1e-5)], spec)
        values = [value for state in optimizer.state.values() for value in state.values()]
        states = sum(own_part(value).nbytes for value in values if value.ndim)
    (policy, *_) = (
        part._get_fsdp_state()._fsdp_param_group.mp_policy
        for part in module.modules()
        if isinstance(part, FSDPModule) and part._get_fsdp_state()._fsdp_param_group is not None
    )
    sizes = dict(zip(matrix.device_mesh.mesh_dim_names or (), matrix.device_mesh.shape, strict=True))
    return RoleReport(
        mesh=sizes,
        sharded_over=round(matrix.numel() / own_part(matrix).numel()),
        kept_dtype=matrix.dtype,
        gathered_dtype=policy.param_dtype or matrix.dtype,
        summed_dtype=policy.reduce_dtype or policy.param_dtype or matrix.dtype,
        weight_bytes=sum(own_part(item).nbytes for item in module.parameters()),
        optimizer_bytes=states,
    )
