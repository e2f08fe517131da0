"""Peaks of PPO and GRPO by phase at true shapes against the plan: answers, scores, critic, policy (FakeTensor).

A group shares its prompt and has no critic; rewards of GRPO are functions here, which need no accelerator.
"""

import contextlib
from dataclasses import dataclass, replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist
from test_fake_peaks import LAYOUTS, NOT_ALLOCATED, PASSES, live, optimizer_of, spread  # noqa: F401
from test_fake_steps import CPU, as_on_a_gpu, fake_model, with_fake_memory  # noqa: F401
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from charter.catalog import accelerators, models
from charter.inference.fused import FusedDecoder
from charter.inference.generate import SamplingSettings, _Unfinished, choose, new_cache
from charter.models import parallel
from charter.models.preference import ScalarModel
from charter.models.ranks import Ranks
from charter.models.runtime import precision
from charter.models.sharded_load import tie, tied_weights
from charter.physics.inference_memory import SCORING_TOKENS
from charter.plan.knowledge import Knowledge
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.plan.stage_memory import training_moments
from charter.spec.layout import Layout, Recompute, ZeroStage

pytestmark = pytest.mark.torch
OFF = 0.05


@dataclass(frozen=True)
class Rollouts:
    """Shape of a stage's rollouts."""

    prompt: int = 1024
    longest: int = 4096
    """Tokens of a sequence."""
    answers: int = 16
    """Of one process."""
    group: int = 1
    """Answers to one prompt; a group has no critic."""
    rows: int = 1
    """Of a micro-batch."""

    @property
    def written(self):
        return self.longest - self.prompt


KINDS = {"ppo": Rollouts(), "grpo": Rollouts(group=8, rows=2)}


def scalar(model):
    return ScalarModel(type("Holder", (), {"model": model})())


def grown(cache, fused, columns):
    """Make room in a cache as answers do that grow token by token, without the tokens."""
    if fused:
        while cache.bias_LT.shape[1] < columns:
            cache.make_room(cache.bias_LT.shape[1] + 1)
        return
    for layer in cache.layers:
        one = layer.keys[:, :, :1]
        while layer._roomy_keys.shape[2] < columns:
            layer.keys, layer.values = layer._roomy_keys, layer._roomy_values
            layer.update(one, one)
        layer.keys, layer.values = (part[:, :, : columns - 1] for part in (layer._roomy_keys, layer._roomy_values))


def drawn(model, trained, shape):
    """Answers: the prompts are read, then the last token is drawn; all between need less."""
    settings, count = SamplingSettings(max_new_tokens=shape.written, top_p=0.9), shape.answers
    with trained.gathered(), precision("bf16", CPU), torch.no_grad():
        decoder = FusedDecoder(model, torch.bfloat16) if type(trained) is parallel.Parallel else None
        batch = _Unfinished(
            row_L=torch.zeros(count, dtype=torch.long),
            finished_L=torch.zeros(count, dtype=torch.bool),
            ids_LQ=torch.zeros((count, shape.prompt), dtype=torch.long),
            position_LQ=torch.zeros((count, shape.prompt), dtype=torch.long),
            mask_LT=None,
            columns=shape.prompt,
            cache=new_cache(model.config),
            first_rows=list(range(0, count, shape.group)),
        )
        for columns in (shape.prompt, shape.longest):
            if columns > shape.prompt:
                grown(batch.cache, decoder is not None, columns)
            batch.columns = columns
            token_L = choose(batch.next_logits(model, decoder), torch.zeros(count, dtype=torch.float64), settings)
            batch.extend(token_L, batch.finished_L, look=False)


def asked(shape):
    """Sequences of a micro-batch, whose answers' tokens are asked for."""
    ids_BT = torch.zeros((shape.rows, shape.longest), dtype=torch.long)
    return {"input_ids": ids_BT, "at_N": torch.zeros(shape.rows * shape.written, dtype=torch.long)}


def policy_part(trained, shape):
    with precision("bf16", CPU):
        given = asked(shape)
        loss = trained.call(**given, target_N=given["at_N"]).log_probability_N.sum()
    loss.backward()


def value_part(trained, shape):
    with precision("bf16", CPU):
        given = asked(shape)
        loss = trained.call(given["input_ids"], at_N=given["at_N"]).sum()
    loss.backward()


def scored(scores, shape):
    with torch.no_grad(), precision("bf16", CPU):
        rows = SCORING_TOKENS // shape.longest
        scores(torch.zeros((rows, shape.longest), dtype=torch.long), at_N=torch.zeros(rows, dtype=torch.long))


def models_of(architecture, shape):
    """Trained and frozen models by role."""
    policy, reference = fake_model(architecture), fake_model(architecture)
    if shape.group > 1:
        return {"policy": policy}, {"reference": reference}
    return (
        {"policy": policy, "value": scalar(fake_model(architecture))},
        {"reference": reference, "reward": scalar(fake_model(architecture))},
    )


def frozen(module, layout, live, monkeypatch):  # noqa: F811
    """What reads: a reference or a reward model."""
    module.requires_grad_(False)
    is_split = layout.zero >= 3 or layout.tensor > 1
    return spread(module, layout, live, monkeypatch).call if is_split else module


def measured(live, architecture, layout, shape, monkeypatch):  # noqa: F811
    """Bytes at the peak of each phase."""
    learning, reading = models_of(architecture, shape)
    if layout.world_size > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world_size)
        meshes = parallel.data_mesh(layout, Ranks(device=CPU))
        monkeypatch.setattr(parallel, "data_mesh", lambda *_: meshes)
    ties = {module: tied_weights(module) for module in (*learning.values(), *reading.values())}
    for module in reading.values():
        module.requires_grad_(False)
        parallel.cast_frozen(module, torch.bfloat16, everything=layout.zero > 0)
    peaks = {}

    @contextlib.contextmanager
    def phase(name):
        live.peak = live.now
        yield
        peaks[name] = max(live.peak, peaks.get(name, 0))

    with FakeTensorMode(allow_non_fake_inputs=True), live:
        for module, tied in ties.items():
            with_fake_memory(module)
            tie(module, tied)
        readers = {role: frozen(module, layout, live, monkeypatch) for role, module in reading.items()}
        trained = {role: spread(module, layout, live, monkeypatch) for role, module in learning.items()}
        optimizers = {role: optimizer_of(module, layout, live, monkeypatch) for role, module in learning.items()}
        # Before the first update there is no state of the optimizers.
        for update in range(2):
            if update:
                with phase("answers"):
                    drawn(learning["policy"], trained["policy"], shape)
                if "reward" in readers:
                    with phase("scores"):
                        scored(readers["reward"], shape)
            for number in range(PASSES):
                waits = number < PASSES - 1
                for name, each in trained.items():
                    with phase(name), each.accumulating() if waits else contextlib.nullcontext():
                        PARTS[name](each, shape)
            for name, optimizer in optimizers.items():
                with phase(name):
                    optimizer.step()
            for optimizer in optimizers.values():
                optimizer.zero_grad(set_to_none=True)
    return peaks


PARTS = {"policy": policy_part, "value": value_part}


def work_of(architecture, layout, shape):
    """The roles and phases that a plan has of such a stage."""
    roles = (
        Role(name="policy", architecture=architecture, model="base", trained=True),
        Role(name="value", architecture=architecture, model="pm", trained=True, scalar_head=True),
        Role(name="reference", architecture=architecture, model="base"),
        Role(name="reward", architecture=architecture, model="pm", scalar_head=True),
    )
    each = {"steps": 1, "prompt_tokens": shape.longest, "longest_tokens": shape.longest}
    update = {**each, "work": "train", "batch": 16, "logit_share": shape.written / shape.longest}
    phases = (
        RolePhase(
            name="answers",
            work="generate",
            role="policy",
            batch=shape.answers * layout.data,
            read_share=1 / shape.group,
            **{**each, "prompt_tokens": shape.prompt},
        ),
        RolePhase(name="scores", work="score", role="reward", batch=shape.answers * layout.data, **each),
        RolePhase(name="train policy", role="policy", **update),
        RolePhase(name="train value", role="value", **update),
    )
    here = {"policy", "reference"} if shape.group > 1 else {role.name for role in roles}
    return Workload(
        roles=tuple(role for role in roles if role.name in here),
        phases=tuple(phase for phase in phases if phase.role in here),
        counters=Counters(),
        together=True,
    )


def planned(architecture, layout, shape):
    """Bytes of the plan at each phase, without what no operation allocates."""
    moments = training_moments(
        work_of(architecture, layout, shape),
        Layout(
            data=layout.data,
            tensor=layout.tensor,
            zero=ZeroStage(layout.zero),
            recompute=Recompute(layout.recompute),
            accumulation=PASSES,
            micro_batch=shape.rows,
            offload_optimizer=layout.offload == "optimizer",
            offload_activations=layout.offload_activations,
        ),
        accelerator=accelerators.get("H100"),
        dtype="bf16",
        knowledge=Knowledge(),
        engine="native",
        together={"answers": shape.answers},
    )
    sums = {}
    for moment in moments:
        phase = moment.moment.split()[1] if moment.moment.startswith("training") else moment.moment
        size = sum(term.value for _, term in moment.parts if term.name not in NOT_ALLOCATED)
        sums[phase] = max(size, sums.get(phase, 0.0))
    return sums


SAMPLE = {
    ("Qwen3-0.6B", "ppo", "one"),
    ("Llama-3.1-8B", "ppo", "zero 3"),
    ("Qwen3-0.6B", "grpo", "zero 2"),
    ("Llama-3.1-8B", "grpo", "one"),
}
"""Run by `make test`, with few layers; the others have all."""
DEPTHS = {"Qwen3-0.6B": (2, 28), "Llama-3.1-8B": (4, 32), "Llama-3.1-70B": (4, 80)}
SHARDED = [
    "zero 3",
    "zero 3, recompute",
    "zero 3, moments away",
    "zero 3, inputs away",
    "tensor 2",
    "tensor 2, inputs away",
]
"""Layouts that four models of 70B are run with."""


def cases():
    for name, (few, every) in DEPTHS.items():
        for kind in KINDS:
            for label, layout in LAYOUTS.items():
                # Stages that draw answers take neither sequence nor context parallelism.
                if layout.sequence_parallel or layout.context > 1 or (every == 80 and label not in SHARDED):
                    continue
                if (name, kind, label) in SAMPLE:
                    yield pytest.param(name, few, kind, label)
                yield pytest.param(name, every, kind, label, marks=pytest.mark.thorough)


@pytest.mark.parametrize(("name", "layers", "kind", "label"), [*cases()])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_peaks_of_rollouts_are_the_planned_ones(name, layers, kind, label, live, monkeypatch):  # noqa: F811
    architecture, layout = replace(models.get(name).architecture, num_layers=layers), LAYOUTS[label]
    monkeypatch.setattr("charter.models.token_forward._is_plain", lambda head: not isinstance(head.weight, DTensor))
    check(live, architecture, layout, KINDS[kind], monkeypatch, f"{name} {layers} {kind} {label}")


def check(live, architecture, layout, shape, monkeypatch, case):  # noqa: F811
    peaks, plan = measured(live, architecture, layout, shape, monkeypatch), planned(architecture, layout, shape)
    for phase, size in peaks.items():
        print(f"RATIO {case} {phase}: {plan[phase] / size:.3f} of {size / 2**30:.2f} GiB")
    assert plan == pytest.approx(peaks, rel=OFF)


@pytest.mark.parametrize("label", ["one", pytest.param("zero 3", marks=pytest.mark.thorough)])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_short_answers_have_logits_and_room_to_grow(label, live, monkeypatch):  # noqa: F811
    """Of many short answers, logits and columns that no token has written yet weigh as much as keys and values."""
    architecture = replace(models.get("Qwen3-0.6B").architecture, num_layers=4)
    shape = Rollouts(prompt=64, longest=320, answers=512, group=8, rows=16)
    monkeypatch.setattr("charter.models.token_forward._is_plain", lambda head: not isinstance(head.weight, DTensor))
    check(live, architecture, LAYOUTS[label], shape, monkeypatch, f"short answers {label}")
