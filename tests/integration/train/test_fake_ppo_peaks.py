"""Peaks of PPO by phase at true shapes against the plan: answers, scores, critic, policy (FakeTensor, no device)."""

import contextlib
from dataclasses import replace

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
from charter.inference.generate import _Unfinished, new_cache
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
PROMPT, LONGEST, ANSWERS = 1024, 4096, 16
"""Tokens of a prompt and of a sequence, and answers of one process."""
OFF = 0.05


def scalar(model):
    return ScalarModel(type("Holder", (), {"model": model})())


def drawn(model, trained):
    """Answers: the prompts are read, then the last token is drawn; all between need less."""
    rows = list(range(ANSWERS))
    with trained.gathered(), precision("bf16", CPU), torch.no_grad():
        decoder = FusedDecoder(model, torch.bfloat16) if type(trained) is parallel.Parallel else None
        batch = _Unfinished(
            row_L=torch.zeros(ANSWERS, dtype=torch.long),
            finished_L=torch.zeros(ANSWERS, dtype=torch.bool),
            ids_LQ=torch.zeros((ANSWERS, PROMPT), dtype=torch.long),
            position_LQ=torch.zeros((ANSWERS, PROMPT), dtype=torch.long),
            mask_LT=None,
            columns=PROMPT,
            cache=new_cache(model.config),
            first_rows=rows,
        )
        batch.next_logits(model, decoder)
        batch.extend(torch.zeros(ANSWERS, dtype=torch.long), batch.finished_L, look=False)
        if decoder is None:
            for layer in batch.cache.layers:
                part = layer.keys[:, :, :1].expand(-1, -1, LONGEST - PROMPT - 1, -1)
                layer.update(part, part)
        batch.columns = LONGEST
        batch.next_logits(model, decoder)


def asked():
    """One sequence, whose answer's tokens are asked for."""
    ids_BT, at_N = (torch.zeros(shape, dtype=torch.long) for shape in ((1, LONGEST), LONGEST - PROMPT))
    return {"input_ids": ids_BT, "at_N": at_N}


def policy_part(trained):
    with precision("bf16", CPU):
        given = asked()
        loss = trained.call(**given, target_N=given["at_N"]).log_probability_N.sum()
    loss.backward()


def value_part(trained):
    with precision("bf16", CPU):
        given = asked()
        loss = trained.call(given["input_ids"], at_N=given["at_N"]).sum()
    loss.backward()


def frozen(module, layout, live, monkeypatch):  # noqa: F811
    """What reads: a reference or a reward model."""
    module.requires_grad_(False)
    is_split = layout.zero >= 3 or layout.tensor > 1
    return spread(module, layout, live, monkeypatch).call if is_split else module


def measured(live, architecture, layout, monkeypatch):  # noqa: F811
    """Bytes at the peak of each phase."""
    policy, reference = fake_model(architecture), fake_model(architecture)
    value, reward = (scalar(fake_model(architecture)) for _ in range(2))
    if layout.world_size > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world_size)
        meshes = parallel.data_mesh(layout, Ranks(device=CPU))
        monkeypatch.setattr(parallel, "data_mesh", lambda *_: meshes)
    modules = (policy, reference, value, reward)
    ties = {module: tied_weights(module) for module in modules}
    for module in (reference, reward):
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
        _, scores = (frozen(module, layout, live, monkeypatch) for module in (reference, reward))
        trained, critic = (spread(module, layout, live, monkeypatch) for module in (policy, value))
        optimizers = [optimizer_of(module, layout, live, monkeypatch) for module in (policy, value)]
        # Before the first update there is no state of the optimizers.
        for update in range(2):
            if update:
                with phase("answers"):
                    drawn(policy, trained)
                with phase("scores"), torch.no_grad(), precision("bf16", CPU):
                    rows = SCORING_TOKENS // LONGEST
                    scores(torch.zeros((rows, LONGEST), dtype=torch.long), at_N=torch.zeros(rows, dtype=torch.long))
            for number in range(PASSES):
                waits = number < PASSES - 1
                for name, part, each in (("policy", policy_part, trained), ("value", value_part, critic)):
                    with phase(name), each.accumulating() if waits else contextlib.nullcontext():
                        part(each)
            for name, optimizer in zip(("policy", "value"), optimizers, strict=True):
                with phase(name):
                    optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
    return peaks


def planned(architecture, layout):
    """Bytes of the plan at each phase, without what no operation allocates."""
    roles = (
        Role(name="policy", architecture=architecture, model="base", trained=True),
        Role(name="value", architecture=architecture, model="pm", trained=True, scalar_head=True),
        Role(name="reference", architecture=architecture, model="base"),
        Role(name="reward", architecture=architecture, model="pm", scalar_head=True),
    )
    each = {"steps": 1, "prompt_tokens": LONGEST, "longest_tokens": LONGEST}
    share = (LONGEST - PROMPT) / LONGEST
    phases = (
        RolePhase(
            name="answers",
            work="generate",
            role="policy",
            batch=ANSWERS * layout.data,
            **{**each, "prompt_tokens": PROMPT},
        ),
        RolePhase(name="scores", work="score", role="reward", batch=ANSWERS * layout.data, **each),
        RolePhase(name="train policy", work="train", role="policy", batch=16, logit_share=share, **each),
        RolePhase(name="train value", work="train", role="value", batch=16, logit_share=share, **each),
    )
    moments = training_moments(
        Workload(roles=roles, phases=phases, counters=Counters(), together=True),
        Layout(
            data=layout.data,
            tensor=layout.tensor,
            zero=ZeroStage(layout.zero),
            recompute=Recompute(layout.recompute),
            accumulation=PASSES,
            micro_batch=1,
            offload_optimizer=layout.offload == "optimizer",
            offload_activations=layout.offload_activations,
        ),
        accelerator=accelerators.get("H100"),
        dtype="bf16",
        knowledge=Knowledge(),
        engine="native",
        together={"answers": ANSWERS},
    )
    sums = {}
    for moment in moments:
        phase = moment.moment.split()[1] if moment.moment.startswith("training") else moment.moment
        size = sum(term.value for _, term in moment.parts if term.name not in NOT_ALLOCATED)
        sums[phase] = max(size, sums.get(phase, 0.0))
    return sums


SAMPLE = [("Qwen3-0.6B", 2, "one"), ("Llama-3.1-8B", 4, "zero 3")]
"""Run by `make test`, with few layers; the others have all."""
DEPTHS = {"Qwen3-0.6B": 28, "Llama-3.1-8B": 32}


def cases():
    for name, every in DEPTHS.items():
        for label, layout in LAYOUTS.items():
            if not layout.sequence_parallel:
                yield pytest.param(name, every, label, marks=pytest.mark.thorough)


@pytest.mark.parametrize(("name", "layers", "label"), [*SAMPLE, *cases()])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_peaks_of_ppo_are_the_planned_ones(name, layers, label, live, monkeypatch):  # noqa: F811
    architecture, layout = replace(models.get(name).architecture, num_layers=layers), LAYOUTS[label]
    monkeypatch.setattr("charter.models.token_forward._is_plain", lambda head: not isinstance(head.weight, DTensor))
    peaks, plan = measured(live, architecture, layout, monkeypatch), planned(architecture, layout)
    for phase, size in peaks.items():
        print(f"RATIO {name} {layers} {label} {phase}: {plan[phase] / size:.3f} of {size / 2**30:.2f} GiB")
    assert plan == pytest.approx(peaks, rel=OFF)
