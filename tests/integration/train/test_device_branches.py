"""What the engine does on a GPU only, without one: fake tensors say they lie there, and calls of torch are replaced."""

import contextlib
import types
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny
from test_fake_steps import LiveBytes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.utils._pytree import tree_leaves

from charter.errors import DataError, StageError
from charter.inference import fused, score, vllm_worker
from charter.inference.fused import FusedDecoder, JointCache, TokenGraph
from charter.inference.generate import _groups
from charter.inference.generator import VllmOptions
from charter.models import language_model, parallel, ranks, runtime, token_forward
from charter.models.adapters import add_adapter
from charter.models.engine_layout import StageLayout
from charter.models.ranks import Ranks
from charter.spec.layout import Adapter
from charter.spec.stage import SftStage
from charter.train import meter, models, optimizers
from charter.train.checkpoint import HostBuffers
from charter.train.packing import packed_attention
from charter.train.ppo_answers import Flight
from charter.train.ppo_rollout import Rollout
from charter.train.ppo_sequences import Sequences

pytestmark = pytest.mark.torch
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


class Stop(Exception):
    """The call of which a test wants to know."""


def noting(calls, name, returns=None):
    """A function that notes with what it was called."""
    return lambda *args, **more: calls.append((name, args, more)) or returns


def as_on_a_gpu(module):
    """The module with fake weights that say they lie on a GPU."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return module.to(GPU)


# -------- What is loaded, cast, spread and copied.


def test_a_model_that_answers_has_16_bits_there():
    assert language_model.answering_dtype(GPU) is torch.bfloat16
    assert language_model.answering_dtype(CPU) is torch.float32


def test_each_process_reads_its_own_parts_there():
    def reads(device):
        setup = types.SimpleNamespace(device=device, layout=StageLayout(), job=types.SimpleNamespace(spec=object()))
        return models.reads_parts(setup)

    assert (reads(GPU), reads(CPU)) == (True, False)


def test_what_is_frozen_is_cast_once_there(monkeypatch):
    """Frozen models, and the base under adapters; on a processor autocast decides. Norms go with what is sharded."""

    monkeypatch.setattr(parallel, "fill_weights", lambda *_, **__: None)

    def weights(device, *, trained, zero=0):
        model = tiny.language_model().model
        if trained:
            add_adapter(model, Adapter(rank=2), seed=1)
        with FakeTensorMode(allow_non_fake_inputs=True):
            layout = StageLayout(zero=zero)
            spread = parallel.parallelize(model, layout, Ranks(device=device), dtype="bf16", trained=trained)
            layer = spread.module.get_decoder().layers[0]
            projection = layer.self_attn.q_proj
            base = projection.base_layer if trained else projection
            return base.weight.dtype, layer.input_layernorm.weight.dtype

    matrices = (torch.bfloat16, torch.float32)
    assert weights(GPU, trained=False) == weights(GPU, trained=True) == matrices
    assert weights(GPU, trained=False, zero=2) == (torch.bfloat16, torch.bfloat16)
    assert weights(CPU, trained=True) == (torch.float32, torch.float32)
    assert weights(CPU, trained=False, zero=2) == matrices


def test_offloading_means_something_there_only():
    everything = StageLayout(world_size=2, zero=3, offload="all")
    policy = parallel.offload_policy(everything, GPU)
    assert isinstance(policy, CPUOffloadPolicy)
    assert policy.pin_memory, "copied without the processor"
    assert not isinstance(parallel.offload_policy(everything, CPU), CPUOffloadPolicy)
    assert parallel.parameters_device(everything, GPU) == CPU
    assert parallel.parameters_device(StageLayout(world_size=2, zero=3), GPU) == GPU
    assert parallel.is_needless(everything, CPU)
    assert not parallel.is_needless(everything, GPU)
    with pytest.raises(StageError, match="use it with zero 3"):
        parallel.check_offload(StageLayout(offload="all"), GPU)
    for layout in (StageLayout(offload="optimizer"), StageLayout(world_size=2, zero=3, offload="optimizer")):
        parallel.check_offload(layout, GPU)
        assert parallel.moments_on_host(layout, GPU)
        assert not parallel.moments_on_host(layout, CPU)
        assert not isinstance(parallel.offload_policy(layout, GPU), CPUOffloadPolicy)
    assert not parallel.moments_on_host(everything, GPU)


UNITS = {"Embedding", "LlamaDecoderLayer", "AskedHead", "LlamaForCausalLM"}


@pytest.fixture
def units(monkeypatch):
    """What each kind of unit of a sharded model is told; all of one kind are told the same."""
    monkeypatch.setattr(parallel, "register_fsdp_forward_method", lambda *_: None)
    monkeypatch.setattr(parallel, "fully_shard", lambda part, **more: told.append((type(part).__name__, more)))
    told = []

    def units(layout, *, dtype=torch.bfloat16, device=GPU):
        told.clear()
        architecture = replace(tiny.ARCHITECTURE, tied_embeddings=False)
        tokenizer = tiny.train_tokenizer(tiny.TEXTS, vocab_size=400)
        model = language_model.new_language_model(architecture, tokenizer, seed=0).model
        parallel.shard(model, layout, "mesh", Ranks(device=device), dtype=dtype)
        assert [kind for kind, _ in told].count("LlamaDecoderLayer") == architecture.num_layers
        assert all(more == dict(told)[kind] for kind, more in told)
        return dict(told)

    return units


def test_gradients_are_added_up_in_full_precision_there(units):
    """Layers compute in the stage's type; what processes add up is fp32, whatever that is."""
    three = StageLayout(world_size=2, zero=3)
    for dtype in (torch.bfloat16, torch.float16):
        told = units(three, dtype=dtype)
        policies = [more["mp_policy"] for more in told.values()]
        assert {(item.param_dtype, item.reduce_dtype) for item in policies} == {(dtype, torch.float32)}
        assert told.keys() == UNITS
    for case in ({"dtype": torch.float32}, {"device": CPU}):
        assert not any("mp_policy" in more for more in units(three, **case).values())


def test_every_unit_is_freed_and_moved_as_the_layout_says(units):
    """The head's backward pass comes at once, the root's first: neither is gathered twice."""
    for layout, freed in ((StageLayout(world_size=2, zero=3), True), (StageLayout(world_size=2, zero=2), False)):
        told = {kind: more["reshard_after_forward"] for kind, more in units(layout).items()}
        root = None if freed else False  # None: torch keeps what is the root
        assert told == {"Embedding": freed, "LlamaDecoderLayer": freed, "AskedHead": False, "LlamaForCausalLM": root}
        assert {more["mesh"] for more in units(layout).values()} == {"mesh"}
    for offload in ("none", "optimizer", "all"):
        policies = [
            more["offload_policy"] for more in units(StageLayout(world_size=2, zero=3, offload=offload)).values()
        ]
        assert [isinstance(item, CPUOffloadPolicy) for item in policies] == [offload == "all"] * len(UNITS)


class GpuBytes(LiveBytes):
    """Bytes of what lies on the GPU alone."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        for item in tree_leaves(out):
            if isinstance(item, torch.Tensor) and item.device.type == "cuda":
                self._count(item.untyped_storage())
        return out


def test_moments_visit_the_gpu_for_their_step_alone(monkeypatch):
    """No more of them at once than planned, in memory that it reads by itself; the host waits once, at the end."""
    waits, zeros, pinned, copies = [], torch.zeros, [], []
    stream = types.SimpleNamespace(synchronize=lambda: waits.append(len(copies)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(
        torch, "zeros", lambda *size, **more: pinned.append(more.get("pin_memory")) or zeros(*size, **more)
    )
    monkeypatch.setattr(optimizers, "VISITING_BYTES", 2 * 8 * 1000.0)
    copy_ = torch.Tensor.copy_
    monkeypatch.setattr(
        torch.Tensor,
        "copy_",
        lambda mine, its, **more: copies.append(more.get("non_blocking")) or copy_(mine, its, **more),
    )
    with FakeTensorMode(), GpuBytes() as live:
        weights = [torch.nn.Parameter(torch.empty(size, 100, device=GPU)) for size in (10, 10, 10, 30, 10)]
        optimizer = optimizers.make_optimizer([(weights, 1e-3)], SftStage(init="a", data=("d",)), on_host=True)
        for item in weights:
            item.grad = torch.zeros_like(item)
        before = live.peak = live.now
        optimizer.step()
        assert live.peak - before == 8 * 3000, "of the largest"
        assert live.now == before
        moments = [optimizer.state[item][name] for item in weights for name in optimizers.MOMENTS]
        assert {item.device.type for item in moments} == {"cpu"}
        assert {optimizer.state[item]["step"].device.type for item in weights} == {"cuda"}
    assert waits == [10], "after all have gone home"
    assert set(copies) == {True}
    assert pinned.count(True) == 10


def test_inputs_of_layers_wait_in_memory_that_the_gpu_reads(monkeypatch):
    """Page-locked, by copies for which the host does not wait."""
    away, hooks, calls = [], parallel.save_on_cpu, []
    monkeypatch.setattr(parallel, "save_on_cpu", lambda **more: away.append(hooks(**more)) or away[-1])
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    layers._no_split_modules = ["Linear"]
    parallel.recompute_layers(layers, "full", inputs_on_host=True)
    layers(torch.ones(2, 4))
    assert len(away) == 2

    def noted(what, flag, function):
        def call(*args, **more):
            calls.append((what, more.get(flag)))
            return function(*args, **more)

        return call

    with FakeTensorMode():
        hidden = torch.empty(50, 100, device=GPU)
        there = [True]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(there) and there.pop())  # asked by the hook first
        monkeypatch.setattr(torch, "empty", noted("empty", "pin_memory", torch.empty))
        monkeypatch.setattr(torch.Tensor, "copy_", noted("copy_", "non_blocking", torch.Tensor.copy_))
        monkeypatch.setattr(torch.Tensor, "to", noted("to", "non_blocking", torch.Tensor.to))
        packed = away[0].pack_hook(hidden)
        assert packed[1].device == CPU
        assert away[0].unpack_hook(packed).device == GPU
    assert calls == [("empty", True), ("copy_", True), ("to", True)]


def test_ddp_is_told_its_gpu_and_keeps_its_random_state(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", noting(calls, "ddp"))
    for device in (torch.device("cuda", 3), CPU):
        parallel._averaged(torch.nn.Linear(2, 2), Ranks(device=device, world_size=2, data_size=2, data_group="group"))
    assert [more.pop("device_ids") for _, _, more in calls] == [[3], None]
    as_planned = {"gradient_as_bucket_view": True, "broadcast_buffers": False}  # gradients once; buffers never change
    assert all(more == {"process_group": "group", **as_planned} for _, _, more in calls)

    @contextlib.contextmanager
    def fork_rng(devices):
        forks.append(list(devices))
        yield

    forks = []
    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    module, loss = torch.nn.Linear(2, 2), types.SimpleNamespace(backward=lambda: None)
    for spread in (module, as_on_a_gpu(torch.nn.Linear(2, 2))):
        wrapped = parallel.DdpParallel.__new__(parallel.DdpParallel)
        wrapped.module = spread
        wrapped.warm(lambda: loss)
    with runtime.seeded(1):
        pass
    assert forks == [[], [0, 1], [0, 1]]


def test_ddp_adds_up_once_in_a_step():
    """In the pass after those that accumulate; each pass more would send all gradients over the network again."""
    network = ["on"]

    @contextlib.contextmanager
    def no_sync():
        network.append("off")
        yield
        network.append("on")

    wrapped = types.SimpleNamespace(no_sync=no_sync)
    with parallel.DdpParallel(torch.nn.Linear(2, 2), wrapped, is_first=True).accumulating():
        assert network[-1] == "off"
    assert network[-1] == "on"


def test_processes_meet_over_nccl_there(monkeypatch, tmp_path):
    calls, groups = [], []
    monkeypatch.setattr(ranks, "rank_of_process", lambda: 0)
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    monkeypatch.setattr(ranks, "_store", lambda *_: None)
    monkeypatch.setattr(ranks, "PrefixStore", lambda *_: None)
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(ranks.dist, "init_process_group", noting(calls, "init"))
    monkeypatch.setattr(ranks.dist, "new_group", lambda *members, **more: groups.append(more))
    for device in (GPU, CPU):
        ranks.join(tmp_path, device)
    assert [args[0] for _, args, _ in calls] == ["cpu:gloo,cuda:nccl", "gloo"]
    of_hosts = [more.get("backend") for more in groups]
    assert of_hosts == [None, "gloo", "gloo"] * 2, "what is said between hosts, and what is saved, needs no device"
    options = VllmOptions()
    rollout_seconds = options.start_seconds + options.sync_seconds + options.sample_seconds
    waits = [more["timeout"].total_seconds() for more in groups if more.get("backend")]
    assert min(waits) > rollout_seconds, "all wait while the first one has answers drawn"
    computes = [more["timeout"].total_seconds() for more in (*groups, *(more for _, _, more in calls))]
    assert min(computes) < options.sample_seconds, "a collective that hangs is noticed where no supervisor looks"


def test_states_are_copied_to_pinned_memory_and_waited_for(monkeypatch):
    calls, empty, copy, pinned = [], torch.empty, torch.Tensor.copy_, []

    def made(*args, pin_memory=False, **more):
        pinned.append(pin_memory)
        return empty(*args, **more)

    def copied(buffer, value, *, non_blocking):
        calls.append("queued" if non_blocking else "copied")
        return copy(buffer, value)

    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("waits"))
    with FakeTensorMode() as there:
        state = {"weight": torch.ones(4, 4, device=GPU), "moment": torch.ones(4, device=GPU)}
        mixed = {"weight": state["weight"], "moment at home": torch.ones(4)}
        buffers, three = HostBuffers(), torch.ones(3, device=GPU)
        assert buffers.further_bytes({"three": three}) == 16, "page-locked: a power of two"
        monkeypatch.setattr(torch, "empty", made)
        first, second = buffers.copy(state), buffers.copy(state)
    assert {item.device.type for item in first.values()} == {"cpu"}
    assert all(first[name] is second[name] for name in state), "buffers are filled anew"
    assert (pinned, calls) == ([True, True], ["queued", "queued", "waits"] * 2)
    assert HostBuffers().further_bytes({"three": torch.ones(3)}) == 12
    HostBuffers().copy({"weight": torch.ones(2)})
    assert (pinned[2:], calls[6:]) == ([False], ["copied"])
    with there:
        HostBuffers().copy(mixed)
    assert (pinned[3:], calls[7:]) == ([True, False], ["queued", "copied", "waits"]), "one of them is enough"


def test_inputs_go_over_without_a_wait(monkeypatch):
    moves = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: moves.append("pinned") or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, **more: moves.append((device, more)) or self)
    runtime.on_device(torch.ones(1), GPU)
    runtime.on_device(torch.ones(1), CPU)
    assert moves == ["pinned", (GPU, {"non_blocking": True}), (CPU, {})]
    with FakeTensorMode():
        there = torch.ones(1, device=GPU)
    moves.clear()
    runtime.on_device(there, CPU)
    assert moves == [(CPU, {})], "the host reads what it gets at once"
    assert (runtime.is_queued(GPU), runtime.is_queued(CPU)) == (True, False)


def test_attention_of_cuda_alone_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DataError, match="needs a CUDA device"):
        runtime.checked_attention("flex_attention")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert runtime.checked_attention("flex_attention") == "flex_attention"


def test_packed_rows_have_bounds_where_kernels_take_them():
    case = {"dtype": "bf16", "dropout": 0.0, "device": GPU}
    assert packed_attention("sdpa", **case) == "varlen"
    for change in ({"dtype": "fp32"}, {"dropout": 0.1}, {"device": CPU}):
        assert packed_attention("sdpa", **{**case, **change}) == "sdpa"
    assert packed_attention("flex_attention", **case) == "flex_attention"


def test_a_rollout_of_a_checkpoint_lies_where_the_stage_computes():
    """Wherever its buffers were read to; answers in flight are numbers on the host until they are looked at."""
    own = Ranks(device=torch.device("meta"))
    of_answers, ids = torch.ones(2, 4), torch.ones(2, 8).long()
    sequences = Sequences(ids, ids, ids[:, 0], of_answers > 0)
    rollout = Rollout(sequences, of_answers, of_answers, of_answers[:, 0], of_answers[:, 0] > 0, value_BR=of_answers)
    there = Rollout.from_buffers(rollout.to_buffers(Ranks()), own)
    flight = Flight.of([(5, 6), (7,)]).as_answers(padding=0, device=own.device)
    for item in (there, there.sequences, flight):
        tensors = [value for value in vars(item).values() if isinstance(value, torch.Tensor)]
        assert {value.device for value in tensors} == {own.device}


# -------- How much goes through the model at once.


def test_passes_and_tiles_are_larger_there(monkeypatch):
    prompts = [[1] * length for length in (4, 9, 30, 90)]
    assert len(_groups(prompts, 8, GPU)) < len(_groups(prompts, 8, CPU))
    vocabulary, rows = 100_000, 100_000
    with FakeTensorMode():
        sizes = {}
        for device in (GPU, CPU):
            hidden = torch.empty(rows, 4, device=device)
            parts = [*token_forward.logit_chunks(hidden, torch.empty(vocabulary, 4, device=device))]
            sizes[device.type] = parts[0].stop
    assert sizes == {"cuda": token_forward.CUDA_CHUNK // vocabulary, "cpu": token_forward.LEAST_ROWS}


def test_more_probabilities_stay_for_the_backward_pass_there(monkeypatch):
    context = types.SimpleNamespace(
        needs_input_grad=(True, True),
        save_for_backward=lambda *_: None,
        set_materialize_grads=lambda _: None,
        mark_non_differentiable=lambda _: None,
    )

    def sizes_kept(*, is_cuda):
        sizes = []

        def new_empty(size, dtype):
            return sizes.append(size)

        hidden = types.SimpleNamespace(is_cuda=is_cuda, shape=(2000, 4), new_empty=new_empty)
        monkeypatch.setattr(token_forward, "matmul_inputs", lambda *_: (hidden, torch.empty(100_000, 4)))
        monkeypatch.setattr(token_forward, "logit_chunks", lambda *_: iter(()))
        token_forward._TokenFigures.forward(context, torch.empty(2000, 4), torch.empty(1), None, 1.0, None)
        return sizes

    assert (sizes_kept(is_cuda=True), sizes_kept(is_cuda=False)) == ([(2000, 100_000)], [])


def test_scores_are_read_in_larger_passes_there(monkeypatch):
    asked = []

    def groups(lengths, *, pass_tokens):
        asked.append(pass_tokens)
        raise Stop

    monkeypatch.setattr(score, "length_groups", groups)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    for device in (GPU, CPU):
        with FakeTensorMode():
            weights = [torch.empty(1, device=device)]
        module = types.SimpleNamespace(parameters=lambda weights=weights: iter(weights))
        with pytest.raises(Stop):
            score.score_rows(types.SimpleNamespace(scalar=module), [[1]], [1])
        with pytest.raises(Stop):
            score.last_token_log_probabilities(types.SimpleNamespace(model=module), [[1, 2]], [3])
    assert asked == [score.CUDA_PASS_TOKENS] * 2 + [score.CPU_PASS_TOKENS] * 2


@pytest.fixture
def two_autocasts():
    """Autocast of both kinds of device at once, each in a type of its own."""
    before = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cuda", "cpu")}
    for kind, dtype in (("cuda", torch.float16), ("cpu", torch.bfloat16)):
        torch.set_autocast_enabled(kind, True)
        torch.set_autocast_dtype(kind, dtype)
    yield {GPU: torch.float16, CPU: torch.bfloat16}
    for kind, (is_on, dtype) in before.items():
        torch.set_autocast_enabled(kind, is_on)
        torch.set_autocast_dtype(kind, dtype)


def test_what_autocast_does_not_see_takes_its_type_there(monkeypatch, two_autocasts):
    """Losses and decoders multiply outside of autocast, in the type that it has for the device of their tensors."""
    for device, dtype in two_autocasts.items():
        with FakeTensorMode():
            hidden, weight = torch.empty(3, 4, device=device), torch.empty(5, 4, device=device)
        assert {item.dtype for item in token_forward.matmul_inputs(hidden, weight)} == {dtype}
    calls = []
    monkeypatch.setattr(fused.torch, "autocast", noting(calls, "autocast"))
    monkeypatch.setattr(fused, "_is_plain_decoder", lambda _: True)  # a fake parameter has a class of its own
    model = tiny.language_model().model
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert FusedDecoder.of(model.to(GPU), GPU).dtype is torch.float16
    fused.autocast_as_is(GPU, cache_enabled=False)
    assert calls == [("autocast", ("cuda", torch.float16), {"cache_enabled": False})]


# -------- Time and memory as the device has them.


class Event:
    """An event of a device whose clock a test sets, in milliseconds."""

    now, is_passed = 0.0, False

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self, stream):
        assert stream == "the stream"
        self.at = Event.now

    def elapsed_time(self, other):
        assert Event.is_passed, "the marks have been passed before they are read"
        return other.at - self.at


def test_phases_are_timed_by_the_device(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: setattr(Event, "is_passed", device == GPU))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5)
    monkeypatch.setattr(meter, "LiveBytes", None)  # the allocator counts: no operation goes through Python for it
    own = meter.Meter(tmp_path, device=GPU)
    own.watch([], [], look=True)
    with own.phase("generate"):
        Event.now += 2000.0
    with own.phase("update"):
        Event.now += 500.0
    own.add({"tokens": 10})
    figures = own.metrics()
    assert (figures["seconds_generate"], figures["seconds_update"]) == (2.0, 0.5)
    assert (figures["allocated_bytes"], figures["peak_bytes"]) == (3.0, 5.0)


def test_the_peak_rate_is_that_of_the_gpu(monkeypatch):
    for name, expected in (("NVIDIA H200", 989e12), ("a card that nobody has seen", None)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        peak = meter.peak_of(GPU, "bf16")
        assert peak == (pytest.approx(expected, rel=0.01) if expected else None)
    assert meter.peak_of(CPU, "bf16") is None


# -------- Answers.


def test_a_decoder_on_a_gpu_records_its_tokens():
    model = tiny.language_model().model.to(torch.bfloat16)
    assert not FusedDecoder(model, torch.bfloat16)._has_graphs
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert FusedDecoder(model.to(GPU), torch.bfloat16)._has_graphs
        model.get_decoder().rotary_emb.rope_type = "dynamic"
        assert not FusedDecoder(model, torch.bfloat16)._has_graphs, "the host would look at positions"


@pytest.mark.parametrize("fails", [False, True])
def test_a_token_is_recorded_beside_the_stream_and_replayed(monkeypatch, request, fails):
    calls, streams, now = [], [], types.SimpleNamespace(name="now")
    now.wait_stream = lambda other: calls.append(f"now waits for {other.name}")

    class Stream:
        def __init__(self, device, name="beside"):
            self.name = name
            streams.append(device)

        def wait_stream(self, other):
            calls.append(f"{self.name} waits for {other.name}")

    @contextlib.contextmanager
    def on(stream):
        calls.append(f"on {stream.name}")
        yield

    class Graph:
        def capture_begin(self, *, capture_error_mode):
            calls.append(f"begins {capture_error_mode}")

        def capture_end(self):
            calls.append("ends")

        def replay(self):
            calls.append("replays")

    class Decoder:
        def one_token(self, ids_L, position_LQ, cache, column_1):
            calls.append("token")
            if fails:
                raise Stop
            self.inputs = ids_L, position_LQ, column_1
            return torch.zeros(2, 5)

    monkeypatch.setattr(fused.torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(fused.torch.cuda, "Stream", Stream)
    monkeypatch.setattr(fused.torch.cuda, "current_stream", lambda device: now)
    monkeypatch.setattr(fused.torch.cuda, "stream", on)
    fused._recording_stream.cache_clear()
    request.addfinalizer(fused._recording_stream.cache_clear)
    decoder, cache = Decoder(), JointCache([torch.zeros(2, 2, 4, 1)], torch.zeros(2, 4))
    ids_L, position_LQ = torch.tensor([7, 8]), torch.tensor([[1], [2]])
    recorded = ["beside waits for now", "on beside", "begins thread_local", "token", "ends"]
    if fails:
        with pytest.raises(Stop):
            TokenGraph(decoder, ids_L, position_LQ, cache)
        assert calls == recorded, "a recording that fails is ended"
        return
    graph = TokenGraph(decoder, ids_L, position_LQ, cache)
    logits_LV = graph.logits(torch.tensor([9, 3]), torch.tensor([[4], [5]]), 6)
    assert calls == [*recorded, "now waits for beside", "replays"]
    assert logits_LV.shape == (2, 5)
    assert [item.tolist() for item in decoder.inputs] == [[9, 3], [[4], [5]], [6]], "what it reads was written over"
    assert (ids_L.tolist(), position_LQ.tolist()) == ([7, 8], [[1], [2]]), "in memory of its own"
    TokenGraph(decoder, ids_L, position_LQ, cache)
    assert streams == [ids_L.device], "the next one on the same stream, for which there is a workspace"


def test_vllm_records_graphs_where_there_is_a_gpu(monkeypatch):
    eager = []

    def engine(*, enforce_eager, **more):
        eager.append(enforce_eager)
        raise Stop

    monkeypatch.setattr(vllm_worker.importlib, "import_module", lambda name: types.SimpleNamespace(LLM=engine))
    for is_available in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_available=is_available: is_available)
        with pytest.raises(Stop):
            vllm_worker.VllmEngine().start(model="m", dtype="bfloat16", options={})
    assert eager == [False, True]
