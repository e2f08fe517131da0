"""The meter: seconds by phase with a clock of our own, operations beside torch's counter, bytes beside hand sums."""

import pytest

torch = pytest.importorskip("torch")

import tiny
from still_clock import Clock
from torch.utils.flop_counter import FlopCounterMode

from charter.artifacts.job import PlannedStep, write_planned_step
from charter.physics.flops import forward_flops_per_token
from charter.spec.layout import Recompute
from charter.train.meter import (
    LiveBytes,
    Meter,
    Operations,
    PolicyWork,
    Reader,
    SupervisedWork,
    peak_of,
    storage_bytes,
)

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
READER = Reader(architecture=tiny.ARCHITECTURE)


def meter(path, **changes):
    clock = Clock()
    return Meter(path, device=CPU, clock=clock, **changes), clock


def test_time_belongs_to_the_innermost_phase(tmp_path):
    measured, clock = meter(tmp_path)
    clock.now = 100.0  # loading: before the first phase
    with measured.phase("update"):
        clock.now += 5
        with measured.phase("save"):
            clock.now += 2
        clock.now += 1
    clock.now += 0.5
    with measured.phase("generate"):
        clock.now += 3
    clock.now += 0.25
    found = measured.metrics()
    assert {name: value for name, value in found.items() if value} == {
        "seconds_update": 6.0, "seconds_save": 2.0, "seconds_generate": 3.0, "seconds_other": 0.75,
        }  # fmt: skip
    assert found["seconds_wait"] == found["seconds_score"] == 0.0


def test_every_reading_starts_where_the_last_one_ended(tmp_path):
    measured, clock = meter(tmp_path)
    with measured.phase("update"):
        clock.now += 1
        assert measured.metrics()["seconds_update"] == 1.0
        clock.now += 4
    clock.now += 2
    found = measured.metrics()
    assert (found["seconds_update"], found["seconds_other"]) == (4.0, 2.0)
    assert measured.metrics()["seconds_update"] == 0.0


def fail_in(phase, clock):
    with phase:
        clock.now += 1
        raise RuntimeError


def test_a_phase_that_fails_is_closed(tmp_path):
    measured, clock = meter(tmp_path)
    with pytest.raises(RuntimeError):
        fail_in(measured.phase("score"), clock)
    with measured.phase("update"):
        clock.now += 1
    found = measured.metrics()
    assert (found["seconds_score"], found["seconds_update"]) == (1.0, 1.0)


def test_a_phase_with_another_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="generate, score, update, save, wait"), meter(tmp_path)[0].phase("train"):
        pass


def test_nothing_is_told_before_anything_was_done(tmp_path):
    found = meter(tmp_path)[0].metrics()
    assert found == {f"seconds_{name}": 0.0 for name in ("generate", "score", "update", "save", "wait", "other")}


def test_rates_are_work_over_all_time_and_of_one_process(tmp_path):
    measured, clock = meter(tmp_path, peak_flops_per_second=1000.0, processes=2)
    measured.work = lambda counters: Operations(model=10.0 * counters["tokens"], repeated=2.0 * counters["tokens"])
    for seconds in (3, 1):
        with measured.phase("update"):
            clock.now += seconds
        measured.add({"tokens": 80})
    found = measured.metrics()
    assert found["tokens_per_second"] == 40.0
    assert found["model_flops_per_second"] == 200.0
    assert found["repeated_flops_per_second"] == 40.0
    assert found["mfu"] == 0.2


def test_without_the_work_or_the_peak_there_is_no_mfu(tmp_path):
    measured, clock = meter(tmp_path)
    with measured.phase("update"):
        clock.now += 2
    measured.add({"tokens": 10})
    assert measured.metrics()["tokens_per_second"] == 5.0
    measured.work = lambda counters: Operations(model=1.0)
    clock.now += 1
    measured.add({"tokens": 1})
    found = measured.metrics()
    assert found["model_flops_per_second"] == 1.0
    assert "mfu" not in found
    assert peak_of(CPU, "bf16") is None


def test_the_plan_stands_beside_what_was_measured(tmp_path):
    planned = PlannedStep(
        seconds_per_step=2.0, seconds_by_phase={"update": 2.0}, peak_bytes=1e6, bytes_by_part={}, flops_per_step=1.0
    )
    write_planned_step(tmp_path, planned)
    measured, clock = meter(tmp_path)
    for _ in range(2):
        with measured.phase("update"):
            clock.now += 3
        measured.add({"tokens": 1})
    with measured.phase("save"):
        clock.now += 50
    found = measured.metrics()
    assert (found["planned_seconds_per_step"], found["actual_over_planned_seconds"]) == (2.0, 1.5)
    assert found["planned_peak_bytes"] == 1e6
    assert "actual_over_planned_bytes" not in found


def model():
    torch.manual_seed(0)
    return tiny.language_model().model


def parameters(module):
    return sum(item.numel() for item in {id(item): item for item in module.parameters()}.values())


def test_bytes_are_the_sums_by_hand(tmp_path):
    module = model()
    buffers = sum(item.numel() * item.element_size() for item in module.buffers())
    measured = meter(tmp_path)[0]
    optimizer = torch.optim.AdamW(module.parameters())
    measured.watch([module], [optimizer])
    assert measured.state_bytes() == 4 * parameters(module) + buffers
    module(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
    assert measured.state_bytes() == 8 * parameters(module) + buffers
    optimizer.step()
    counters = 4 * len(list(module.parameters()))
    assert measured.state_bytes() == 16 * parameters(module) + buffers + counters
    assert measured.metrics()["allocated_bytes"] == measured.state_bytes()


def test_shared_storage_counts_once():
    weight = torch.zeros(5, 3)
    assert storage_bytes([weight, weight.t(), weight[1:], torch.zeros(2, dtype=torch.float64)]) == 60 + 16


def test_live_bytes_go_up_and_down():
    known = torch.zeros(100)
    with LiveBytes([known]) as live:
        assert live.now_bytes == 400
        one = torch.ones(1000)
        two = one * 2
        view = two.view(10, 100)
        assert live.now_bytes == 400 + 8000
        del one
        assert live.now_bytes == 4400
        del two
        assert live.now_bytes == 4400
        del view
        known.add_(1)
        assert (live.now_bytes, live.peak_bytes) == (400, 8400)


def step(module, optimizer, measured=None):
    ids = torch.arange(64).reshape(2, 32)
    if measured is not None:
        with measured.phase("update"):
            step(module, optimizer)
        measured.add({"tokens": 64})
        return
    module(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def test_looking_at_one_step_finds_its_peak_and_changes_no_bit(tmp_path):
    plain, looked = model(), model()
    optimizers = [torch.optim.AdamW(item.parameters(), lr=1e-2) for item in (plain, looked)]
    measured = meter(tmp_path)[0]
    measured.watch([looked], [optimizers[1]], look=True)
    for _ in range(3):
        step(plain, optimizers[0])
        step(looked, optimizers[1], measured)
    found = measured.metrics()
    states = (plain.state_dict(), looked.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    logits = 4 * 64 * tiny.ARCHITECTURE.vocab_size
    assert found["peak_bytes"] > 4 * parameters(looked) + 2 * logits
    assert found["peak_bytes"] < 16 * parameters(looked) + 8 * logits
    assert found["allocated_bytes"] < found["peak_bytes"]


def counted_flops(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("length", [32, 128])
def test_operations_are_those_that_torch_counts(length):
    """torch counts the whole square of attention scores, the formula the half of it that a causal model needs."""
    module, ids = model(), torch.arange(2 * length).reshape(2, length) % 512
    module.set_attn_implementation("eager")
    forward = forward_flops_per_token(tiny.ARCHITECTURE, length)
    read, square = READER.forward(2 * length, 2).model, 2 * length * forward.scores
    assert read == pytest.approx(2 * length * forward.total)
    assert counted_flops(lambda: module(input_ids=ids)) == pytest.approx(read + square, rel=0.01)
    trained = READER.training(2 * length, 2).model
    assert trained == 3 * read
    counted = counted_flops(lambda: module(input_ids=ids).logits.sum().backward())
    assert counted == pytest.approx(trained + 3 * square, rel=0.02)


def test_what_is_computed_again_is_kept_apart():
    for recompute in Recompute:
        reader = Reader(architecture=tiny.ARCHITECTURE, recompute=recompute)
        found = reader.training(256, 2)
        forward = forward_flops_per_token(tiny.ARCHITECTURE, 128)
        again = {Recompute.NONE: 0.0, Recompute.SELECTIVE: forward.scores, Recompute.FULL: forward.total - forward.head}
        assert found.model == READER.training(256, 2).model
        assert found.repeated == pytest.approx(256 * again[recompute])


def test_a_frozen_base_needs_no_gradients_of_its_weights():
    forward = forward_flops_per_token(tiny.ARCHITECTURE, 64)
    found = Reader(architecture=tiny.ARCHITECTURE, frozen_base=True).training(64, 1).model / 64
    assert found == pytest.approx(2 * (forward.total - forward.scores) + 3 * forward.scores)


def test_work_of_a_step_by_kind():
    scalar = Reader(architecture=tiny.ARCHITECTURE, scalar_head=True)
    counters = {"tokens": 128, "episodes": 4}
    one, pairs = READER.training(128, 4).model, READER.training(128, 4).model + READER.forward(128, 4).model
    assert SupervisedWork(model=READER, sequences_per_step=4)(counters).model == one
    assert SupervisedWork(model=READER, sequences_per_step=4, reference=READER)(counters).model == pairs
    answered = READER.forward(128, 4, head_share=0.5).model
    half = {"tokens": 128, "logits": 64}
    counted = READER.training(128, 4, head_share=0.5).model
    assert SupervisedWork(model=READER, sequences_per_step=4)(half).model == counted
    both = SupervisedWork(model=READER, sequences_per_step=4, reference=READER)(half).model
    assert both == pytest.approx(counted + answered)
    before = SupervisedWork(model=READER, sequences_per_step=4, reference=READER, reads_before=True)(half).model
    assert before == pytest.approx(counted + 3 * answered)
    counters |= {"logits": 64, "minibatches": 6}
    ppo = PolicyWork(policy=READER, reward=scalar, value=scalar, minibatches=3, reads=3)(counters).model
    assert ppo == pytest.approx((3 + 2 * 3) * answered + (1 + 1 + 2 * 3) * scalar.forward(128, 4).model)
    stopped = PolicyWork(policy=READER, reward=scalar, value=scalar, minibatches=3, reads=3)(
        counters | {"minibatches": 3}
    ).model
    assert stopped == pytest.approx((3 + 3) * answered + (1 + 1 + 3) * scalar.forward(128, 4).model)
    without = PolicyWork(policy=READER, reward=scalar, value=None, minibatches=3, reads=1.5)(counters).model
    assert without == pytest.approx((1.5 + 2 * 3) * answered + scalar.forward(128, 4).model)
