"""Peaks of whole steps at true shapes, under every kind of layout, against the plan: FakeTensor, no memory, no device.

Collectives answer at once and copy nothing (torch's fake process group); FSDP2 and tensor parallelism run as they do on
accelerators, weights gathered in 16 bits. What no operation allocates (context, allocator's slack, workspaces) is left
out of the plan. Models are cut to a few layers, in the plan as well, where their depth is not under test.
"""

import contextlib
import weakref
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist
from test_fake_steps import CPU, SPEC, LiveBytes, as_on_a_gpu, fake_model, with_fake_memory  # noqa: F401
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore

from charter.catalog import accelerators, models
from charter.models import parallel
from charter.models.adapters import add_adapter
from charter.models.context_split import PARTS
from charter.models.engine_layout import StageLayout
from charter.models.preference import ScalarModel
from charter.models.ranks import Ranks
from charter.models.runtime import precision
from charter.models.sharded_load import tie, tied_weights
from charter.physics.memory import job_memory, training_memory
from charter.physics.memory_profiles import MemoryJob
from charter.plan.knowledge import Knowledge
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.plan.stage_memory import training_peak
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage
from charter.train import optimizers
from charter.train.optimizers import make_optimizer
from charter.train.packing import own_parts

pytestmark = pytest.mark.torch
TOKENS, PASSES = 4096, 2
NOT_ALLOCATED = ("device context", "communicators", "process", "workspaces", "allocator slack")
LAYOUTS = {
    "one": StageLayout(),
    "one, recompute": StageLayout(recompute="full"),
    "one, selective": StageLayout(recompute="selective"),
    "zero 3, selective": StageLayout(world_size=8, zero=3, recompute="selective"),
    "zero 2": StageLayout(world_size=8, zero=2),
    "zero 3": StageLayout(world_size=8, zero=3),
    "zero 3, recompute": StageLayout(world_size=8, zero=3, recompute="full"),
    "tensor 2": StageLayout(world_size=8, zero=3, tensor=2),
    "tensor 4, sequence": StageLayout(world_size=8, zero=3, tensor=4, sequence_parallel=True),
    "tensor 4, sequence, recompute": StageLayout(
        world_size=8, zero=3, tensor=4, sequence_parallel=True, recompute="full"
    ),
    "context 2": StageLayout(world_size=8, zero=3, context=2),
    "context 4, recompute": StageLayout(world_size=8, zero=3, context=4, recompute="full"),
    "zero 3, moments away": StageLayout(world_size=8, zero=3, recompute="full", offload="optimizer"),
    "one, inputs away": StageLayout(recompute="full", offload_activations=True),
    "zero 3, inputs away": StageLayout(world_size=8, zero=3, recompute="full", offload_activations=True),
    "tensor 2, inputs away": StageLayout(world_size=8, zero=3, tensor=2, recompute="full", offload_activations=True),
}
DEPTHS = {"Qwen3-0.6B": (4, 28), "Llama-3.1-8B": (4, 32), "Llama-3.1-70B": (4, 80)}
SAMPLE = {
    ("Llama-3.1-8B", "sft", "one"),
    ("Llama-3.1-8B", "sft", "zero 2"),
    ("Llama-3.1-70B", "sft", "zero 3"),
    ("Llama-3.1-8B", "sft", "tensor 2"),
    ("Qwen3-0.6B", "preference_model", "zero 3, recompute"),
    ("Llama-3.1-8B", "preference_model", "one, recompute"),
    ("Llama-3.1-8B", "sft", "one, selective"),
    ("Qwen3-0.6B", "sft", "zero 3, selective"),
    ("Llama-3.1-70B", "sft", "zero 3, moments away"),
    ("Qwen3-0.6B", "sft", "tensor 4, sequence"),
    ("Qwen3-0.6B", "sft", "context 2"),
    ("Qwen3-0.6B", "preference_model", "tensor 4, sequence, recompute"),
    ("Qwen3-0.6B", "preference_model", "one, inputs away"),
    ("Qwen3-0.6B", "preference_model", "context 2"),
}
"""Run by `make test`, with few layers; the others have all."""
SHARES_ROWS = {label for label, layout in LAYOUTS.items() if layout.context > 1}
"""Layouts that the engine does not run with stages that draw answers."""
OFF = 0.05
"""How far the plan may be from what a step takes."""


class Peak(LiveBytes):
    """Live bytes of local tensors; storages that FSDP empties and fills again count as what they are."""

    def __init__(self):
        super().__init__()
        self.sizes, self.is_paused = {}, False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own dispatch runs operations on local tensors, which come here
        return super().__torch_dispatch__(operation, types, args, kwargs)

    def resized(self, storage, before):
        if storage._cdata in self.sizes:
            self.sizes[storage._cdata] = storage.nbytes()
            self._add(storage.nbytes() - before)

    def _add(self, size):
        self.now += size
        self.peak = max(self.peak, self.now)

    def _count(self, storage):
        key = storage._cdata
        if key in self.sizes or self.is_paused:
            return
        self.sizes[key] = storage.nbytes()
        self._add(storage.nbytes())
        weakref.finalize(storage, lambda: self._add(-self.sizes.pop(key)))


@pytest.fixture
def live(monkeypatch):
    """A counter that sees storages change their size, and no shapes that DTensor only tries out."""
    counter = Peak()
    resize, propagate, build = (
        torch.UntypedStorage.resize_,
        ShardingPropagator._propagate_tensor_meta_non_cached,
        DeviceMesh.__init__,
    )

    def resize_(storage, size):
        before = storage.nbytes()
        result = resize(storage, size)
        counter.resized(storage, before)
        return result

    def tried(*args, **more):
        counter.is_paused = True
        try:
            return propagate(*args, **more)
        finally:
            counter.is_paused = False

    def built(*args, **more):
        with unset_fake_temporarily():
            build(*args, **more)

    monkeypatch.setattr(torch.UntypedStorage, "resize_", resize_)
    monkeypatch.setattr(ShardingPropagator, "_propagate_tensor_meta_non_cached", tried)
    monkeypatch.setattr(DeviceMesh, "__init__", built)
    yield counter
    if dist.is_initialized():
        dist.destroy_process_group()


def optimizer_of(module, layout, live, monkeypatch):
    """The optimizer of a layout; moments on the host are none of the device's bytes, their visits are."""
    zeros = optimizers._host_zeros

    def uncounted(weight):
        live.is_paused = True
        try:
            moments = zeros(weight)
            live.sizes[optimizers.own_part(moments).untyped_storage()._cdata] = 0
            return moments
        finally:
            live.is_paused = False

    monkeypatch.setattr(optimizers, "_host_zeros", uncounted)
    return make_optimizer([(list(module.parameters()), 1e-5)], SPEC, on_host=layout.offload == "optimizer")


def away_from(live):
    """The class of hooks that takes tensors to the host: there they are none of the device's bytes."""

    class Away(saved_tensors_hooks):
        def __init__(self, **more):
            hooks = save_on_cpu(**more)

            def pack(tensor):
                live.is_paused = True
                try:
                    packed = hooks.pack_hook(tensor)
                finally:
                    live.is_paused = False
                storage = packed[1].untyped_storage()
                live.sizes[storage._cdata] = 0
                weakref.finalize(storage, live.sizes.pop, storage._cdata)
                return packed

            super().__init__(pack, lambda packed: hooks.unpack_hook(packed).clone())

    return Away


def ranks_of(layout):
    return Ranks(
        world_size=layout.world_size,
        data_size=layout.data,
        context_size=layout.context,
        device=CPU,
        data_group=dist.group.WORLD,
        context_group=None if layout.context == 1 else dist.new_group([*range(layout.context)]),
    )


def spread(module, layout, live, monkeypatch):
    """The module as accelerators have it: `parallelize` without loading, and with their 16-bit gathering."""
    monkeypatch.setattr(parallel, "save_on_cpu", away_from(live))
    parallel.recompute_layers(module, layout.recompute, inputs_on_host=layout.offload_activations)
    if layout.world_size == 1:
        return parallel.Parallel(module)
    ranks = ranks_of(layout)
    mesh = parallel.split_tensors(module, layout, ranks)
    parallel.shard(module, layout, mesh, replace(ranks, device=torch.device("cuda")), dtype=torch.bfloat16)
    return parallel.FsdpParallel(module, frees=parallel.frees_layers(layout), is_first=True)


def measured_peak(live, kind, architecture, layout, monkeypatch):
    """Bytes at the peak of a step of two micro-batches."""
    model = fake_model(architecture)
    module = model if kind == "sft" else ScalarModel(type("Holder", (), {"model": model})())
    if layout.world_size > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world_size)
        meshes = parallel.data_mesh(layout, Ranks(device=CPU))
        monkeypatch.setattr(parallel, "data_mesh", lambda *_: meshes)
    parts = own_parts(ranks_of(layout), model.config, "sdpa", TOKENS)
    ties = tied_weights(module)
    with FakeTensorMode(allow_non_fake_inputs=True), live:
        with_fake_memory(module)
        tie(module, ties)
        trained = spread(module, layout, live, monkeypatch)
        optimizer = optimizer_of(module, layout, live, monkeypatch)
        live.peak = live.now
        for number in range(PASSES):
            last = number == PASSES - 1
            with contextlib.nullcontext() if last else trained.accumulating():
                ids_BT = torch.zeros((1, TOKENS), dtype=torch.long)
                at_N = torch.zeros(TOKENS - 1, dtype=torch.long)
                with precision("bf16", CPU):
                    if kind == "sft":
                        more = {"input_ids": ids_BT} if parts is None else parts.inputs({}, ids_BT)
                        loss = trained.call(**more, at_N=at_N, target_N=at_N, summed=True).loss_sum
                    else:
                        more = {} if parts is None else {PARTS: parts}
                        loss = trained.call(ids_BT, **more).sum()
                loss.backward()
                del loss
        before, live.peak = live.peak, live.now
        optimizer.step()
    return max(before, live.peak), live.peak


def planned_peak(kind, architecture, layout):
    """Bytes at the fullest phase of the plan, and at its optimizer step, without what no operation allocates."""
    job = MemoryJob(
        architecture=architecture,
        seq_len=TOKENS * layout.context,
        head="lm" if kind == "sft" else "scalar",
        cross_entropy="tiled" if kind == "sft" else None,
    )
    plan = job_memory(
        job,
        Layout(
            data=layout.data,
            tensor=layout.tensor,
            context=layout.context,
            sequence_parallel=layout.sequence_parallel,
            zero=ZeroStage(layout.zero),
            recompute=Recompute(layout.recompute),
            accumulation=PASSES,
            offload_optimizer=layout.offload == "optimizer",
            offload_activations=layout.offload_activations,
        ),
    )
    phases = {
        phase: sum(term.value for term in terms if term.name not in NOT_ALLOCATED)
        for phase, terms in plan.phases.items()
    }
    return max(phases.values()), phases["optimizer step"]


def pass_of_a_token_loss(trained, reference, rows, parts):
    """Forward and backward of a policy by the log-probability of each token; a reference reads between them."""
    ids_BT = torch.zeros((rows, TOKENS), dtype=torch.long)
    at_N = torch.zeros(rows * (TOKENS - 1), dtype=torch.long)
    more = {"input_ids": ids_BT} if parts is None else parts.inputs({}, ids_BT)
    asked = {**more, "at_N": at_N, "target_N": at_N}
    with precision("bf16", CPU):
        policy_N = trained.call(**asked).log_probability_N
        with torch.no_grad():
            reference_N = reference(**asked).log_probability_N
    (policy_N - reference_N).sum().backward()


def measured_policy_peak(live, architecture, layout, rows, monkeypatch):
    """Bytes at the peak of a step of a policy beside its reference, of micro-batches of so many rows."""
    policy, reference = fake_model(architecture), fake_model(architecture).requires_grad_(False)
    if layout.world_size > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world_size)
        meshes = parallel.data_mesh(layout, Ranks(device=CPU))
        monkeypatch.setattr(parallel, "data_mesh", lambda *_: meshes)
    parts = own_parts(ranks_of(layout), policy.config, "sdpa", TOKENS)
    ties = {module: tied_weights(module) for module in (policy, reference)}
    parallel.cast_frozen(reference, torch.bfloat16, everything=layout.zero > 0)
    with FakeTensorMode(allow_non_fake_inputs=True), live:
        for module, tied in ties.items():
            with_fake_memory(module)
            tie(module, tied)
        reference.requires_grad_(False)
        is_split = layout.zero >= 3 or layout.tensor > 1
        reads = spread(reference, layout, live, monkeypatch).call if is_split else reference
        trained = spread(policy, layout, live, monkeypatch)
        optimizer = optimizer_of(policy, layout, live, monkeypatch)
        live.peak = live.now
        for number in range(PASSES):
            with contextlib.nullcontext() if number == PASSES - 1 else trained.accumulating():
                pass_of_a_token_loss(trained, reads, rows, parts)
        optimizer.step()
    return live.peak


def planned_policy_peak(architecture, layout, rows):
    """Bytes of the plan of such a stage at its fullest moment, without what no operation allocates."""
    roles = (
        Role(name="policy", architecture=architecture, model="base", trained=True),
        Role(name="reference", architecture=architecture, model="base"),
    )
    longest = TOKENS * layout.context
    update = RolePhase(
        name="train policy",
        work="train",
        role="policy",
        steps=1,
        batch=16,
        prompt_tokens=longest,
        longest_tokens=longest,
    )
    peak = training_peak(
        Workload(roles=roles, phases=(update,), counters=Counters(), together=True),
        Layout(
            data=layout.data,
            tensor=layout.tensor,
            context=layout.context,
            sequence_parallel=layout.sequence_parallel,
            zero=ZeroStage(layout.zero),
            recompute=Recompute(layout.recompute),
            accumulation=PASSES,
            micro_batch=rows,
            offload_optimizer=layout.offload == "optimizer",
            offload_activations=layout.offload_activations,
        ),
        accelerator=accelerators.get("H100"),
        dtype="bf16",
        knowledge=Knowledge(),
    )
    return sum(term.value for _, term in peak.parts if term.name not in NOT_ALLOCATED)


ROWS = {"ppo": 1, "dpo": 2}
"""Rows of a micro-batch: probabilities of one row are kept for the backward pass, those of two are made again."""


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        pytest.param(kind, label, marks=[] if label == "one" else [pytest.mark.thorough])
        for kind in ROWS
        for label in LAYOUTS
        if kind == "dpo" or label not in SHARES_ROWS
    ],
)
@pytest.mark.usefixtures("as_on_a_gpu")
def test_the_peak_of_a_policy_is_the_planned_one(kind, label, live, monkeypatch):
    architecture, layout = replace(models.get("Qwen3-0.6B").architecture, num_layers=4), LAYOUTS[label]
    monkeypatch.setattr("charter.models.token_forward._is_plain", lambda head: not isinstance(head.weight, DTensor))
    measured = measured_policy_peak(live, architecture, layout, ROWS[kind], monkeypatch)
    ratio = planned_policy_peak(architecture, layout, ROWS[kind]) / measured
    print(f"RATIO {kind} {label}: {ratio:.3f} of {measured / 2**30:.2f} GiB")
    assert ratio == pytest.approx(1, abs=OFF)


def measured_peak_of_adapters(live, architecture, layout, rank, monkeypatch):
    """Bytes at the peak of a step of adapters on one device."""
    model = fake_model(architecture)
    add_adapter(model, Adapter(rank=rank), seed=1)
    parallel.cast_frozen(model, torch.bfloat16, everything=False)
    trained, ties = {name for name, item in model.named_parameters() if item.requires_grad}, tied_weights(model)
    with FakeTensorMode(allow_non_fake_inputs=True), live:
        with_fake_memory(model)
        tie(model, ties)
        for parameter, item in model.named_parameters():
            item.requires_grad_(parameter in trained)
        spread(model, layout, live, monkeypatch)
        weights = [item for item in model.parameters() if item.requires_grad]
        optimizer = make_optimizer([(weights, 1e-5)], SPEC)
        live.peak = live.now
        for _ in range(PASSES):
            at_N = torch.zeros(TOKENS - 1, dtype=torch.long)
            with precision("bf16", CPU):
                asked = {"input_ids": torch.zeros((1, TOKENS), dtype=torch.long), "at_N": at_N, "target_N": at_N}
                loss = model(**asked, summed=True).loss_sum
            loss.backward()
            del loss
        optimizer.step()
    return live.peak


def planned_peak_of_adapters(architecture, layout, rank):
    """Bytes of the plan of such a stage at its fullest moment, without what no operation allocates."""
    planned = Layout(
        accumulation=PASSES, recompute=Recompute(layout.recompute), offload_activations=layout.offload_activations
    )
    plan = training_memory(architecture, planned, seq_len=TOKENS, adapter=Adapter(rank=rank))
    return max(sum(term.value for term in terms if term.name not in NOT_ALLOCATED) for terms in plan.phases.values())


@pytest.mark.parametrize(("name", "layers"), [("Llama-3.1-8B", 4), ("Llama-3.2-1B", 4)])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_the_peak_of_a_step_of_adapters_is_the_planned_one(name, layers, live, monkeypatch):
    """Each adapted matrix keeps an input of its own; an embedding stays in fp32, a tied output projection with it."""
    architecture, rank = replace(models.get(name).architecture, num_layers=layers), 16
    measured = measured_peak_of_adapters(live, architecture, StageLayout(), rank, monkeypatch)
    planned = planned_peak_of_adapters(architecture, StageLayout(), rank)
    print(f"RATIO {name} adapters: {planned / measured:.3f} of {measured / 2**30:.2f} GiB")
    assert planned / measured == pytest.approx(1, abs=OFF)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_inputs_beside_adapters_are_planned_in_32_bits(monkeypatch):
    """What the host takes off the device: hidden states as wide as the frozen embedding that they come from."""
    architecture, rank = replace(models.get("Llama-3.2-1B").architecture, num_layers=2), 16
    taken = []
    for peak in (
        lambda layout: measured_peak_of_adapters(Peak(), architecture, layout, rank, monkeypatch),
        lambda layout: planned_peak_of_adapters(architecture, layout, rank),
    ):
        here = peak(StageLayout(recompute="full"))
        taken.append(here - peak(StageLayout(recompute="full", offload_activations=True)))
    assert taken[1] / taken[0] == pytest.approx(1, abs=OFF)


def cases():
    for name, (few, every) in DEPTHS.items():
        for kind in ("sft", "preference_model"):
            for label in LAYOUTS:
                sample = (name, kind, label) in SAMPLE
                marks = [] if sample else [pytest.mark.thorough]
                yield pytest.param(name, few if sample else every, kind, label, marks=marks)


@pytest.mark.parametrize(("name", "layers", "kind", "label"), [*cases()])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_the_peak_of_a_step_is_the_planned_one(name, layers, kind, label, live, monkeypatch):
    architecture, layout = replace(models.get(name).architecture, num_layers=layers), LAYOUTS[label]
    monkeypatch.setattr(
        "charter.models.token_forward._is_plain", lambda head: not isinstance(head.weight, DTensor)
    )  # a fake parameter has a class of its own
    measured, stepping = measured_peak(live, kind, architecture, layout, monkeypatch)
    planned, step = planned_peak(kind, architecture, layout)
    ratio = planned / measured
    print(f"RATIO {name} {layers} {kind} {label}: {ratio:.3f} of {measured / 2**30:.2f} GiB")
    print(f"STEP {step / stepping:.3f} of {stepping / 2**30:.2f} GiB")
    assert ratio == pytest.approx(1, abs=OFF)
    assert step / stepping == pytest.approx(1, abs=OFF)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_heads_of_keys_that_an_exchange_repeats_are_planned(live, monkeypatch):
    """Each of 16 processes attends with a head of keys of its own, where the model has two."""
    shape = replace(models.get("Qwen3-0.6B").architecture, num_layers=8, num_kv_heads=2, vocab_size=32_000)
    layout = StageLayout(world_size=16, zero=3, context=16)
    monkeypatch.setattr("charter.models.token_forward._is_plain", lambda head: not isinstance(head.weight, DTensor))
    measured, _ = measured_peak(live, "sft", shape, layout, monkeypatch)
    ratio = planned_peak("sft", shape, layout)[0] / measured
    print(f"RATIO repeated heads: {ratio:.3f} of {measured / 2**30:.2f} GiB")
    assert ratio == pytest.approx(1, abs=0.02)


LONG = 131_072


@pytest.mark.usefixtures("as_on_a_gpu")
def test_the_peak_of_a_long_row_is_the_planned_one(live, monkeypatch):
    """Of rows so long what is kept beside the layers weighs as much as weights do."""
    monkeypatch.setitem(globals(), "TOKENS", LONG)
    shape, layout = replace(models.get("Llama-3.1-8B").architecture, num_layers=4), LAYOUTS["one, recompute"]
    measured, _ = measured_peak(live, "sft", shape, layout, monkeypatch)
    ratio = planned_peak("sft", shape, layout)[0] / measured
    print(f"RATIO {LONG} tokens: {ratio:.3f} of {measured / 2**30:.2f} GiB")
    assert ratio == pytest.approx(1, abs=0.02)
