"""Optimizers: their state exists before the first step, in 32 and 8 bits; loss scaling in fp16."""

import copy
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import tiny
from group import in_group

from charter.errors import StageError
from charter.models.engine_layout import StageLayout
from charter.models.parallel import own_part, parallelize
from charter.train import optimizers
from charter.train.optimizers import GradientScaler, HostMoments, make_optimizer, set_learning_rate

CPU = torch.device("cpu")


@dataclass
class Settings:
    optimizer: str = "adamw"
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95


def parameters():
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in ((64, 128), (16,))]


def step(optimizer, chosen, *, scale=1.0):
    for item in chosen:
        item.grad = torch.full_like(item, 0.1) * scale
    optimizer.step()


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit"])
def test_a_fresh_optimizer_can_load_a_state_and_goes_on_with_its_bits(name):
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    first, second = parameters(), parameters()
    one = make_optimizer([(first, 1e-2)], Settings(name))
    other = make_optimizer([(second, 1e-2)], Settings(name))
    step(one, first)
    names = {key for item in first for key in one.state[item]}
    assert names == {key for item in second for key in other.state[item]}
    assert all(torch.equal(a, b) for a, b in zip(second, parameters(), strict=True)), "making a state updates nothing"
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    with torch.no_grad():
        for mine, theirs in zip(second, first, strict=True):
            mine.copy_(theirs)
    step(one, first, scale=-2.0)
    step(other, second, scale=-2.0)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit"])
def test_the_first_step_is_adams(name):
    """With bias correction the first step is the learning rate times the gradient's sign, and decay before it."""
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    chosen = parameters()
    before = [item.detach().clone() for item in chosen]
    optimizer = make_optimizer([(chosen, 1e-2)], Settings(name))
    set_learning_rate(optimizer, 0.5)
    step(optimizer, chosen)
    matrix = before[0] * (1 - 0.5e-2 * 0.1) - 0.5e-2
    assert (chosen[0] - matrix).abs().max() < (1e-6 if name == "adamw" else 2e-4)
    assert (chosen[1] - (before[1] - 0.5e-2)).abs().max() < 1e-6, "vectors are not decayed"


def test_eight_bit_moments_take_eight_bits():
    pytest.importorskip("bitsandbytes")
    chosen = parameters()
    optimizer = make_optimizer([(chosen, 1e-2)], Settings("adamw_8bit"))
    assert optimizer.state[chosen[0]]["state1"].dtype == torch.uint8


def test_nothing_to_train_is_refused():
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    with pytest.raises(StageError, match="nothing to train"):
        make_optimizer([([frozen], 1e-2)], Settings())


def sharded_state(ranks):
    module = tiny.language_model().model
    parallel = parallelize(module, StageLayout(world_size=2, zero=3), ranks, dtype="fp32")
    optimizer = make_optimizer([(parallel.trained_parameters(), 1e-3)], Settings())
    made = {name: type(value) for name, value in optimizer.state[parallel.trained_parameters()[0]].items()}
    step(optimizer, parallel.trained_parameters())
    stepped = {name: type(value) for name, value in optimizer.state[parallel.trained_parameters()[0]].items()}
    try:
        make_optimizer([(parallel.trained_parameters(), 1e-3)], Settings("adamw_8bit"))
    except StageError as error:
        return made == stepped, made["exp_avg"].__name__, str(error)


def test_state_of_sharded_parameters_is_sharded():
    for same, kind, refusal in in_group(sharded_state, 2):
        assert same
        assert kind == "DTensor"
        assert "zero 0" in refusal


def drawn_steps(optimizer, weights, *, steps=3):
    """Steps by drawn gradients at changing rates; the second weight has none at first."""
    draw = torch.Generator().manual_seed(5)
    for number in range(steps):
        set_learning_rate(optimizer, 1 / (number + 1))
        for place, item in enumerate(weights):
            gradient = torch.randn(item.shape, generator=draw)
            item.grad = None if place == 1 and number == 0 else gradient
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@pytest.mark.parametrize("at_once", [2.0**28, 70_000.0, 0.0])
def test_moments_on_the_host_change_no_bit(at_once, monkeypatch):
    """However many visit at once: weights, moments, step numbers and groups are those of AdamW."""
    monkeypatch.setattr(optimizers, "VISITING_BYTES", at_once)
    ours, theirs = [*parameters(), *parameters()], [*parameters(), *parameters()]
    away = make_optimizer([(ours, 1e-2)], Settings(), on_host=True)
    plain = make_optimizer([(theirs, 1e-2)], Settings())
    assert isinstance(away, HostMoments)
    homes = {id(value) for item in ours for name, value in away.state[item].items() if name != "step"}
    drawn_steps(away, ours)
    drawn_steps(plain, theirs)
    for mine, its in zip(ours, theirs, strict=True):
        assert torch.equal(mine, its)
        assert away.state[mine].keys() == plain.state[its].keys()
        assert all(torch.equal(value, plain.state[its][name]) for name, value in away.state[mine].items())
    assert homes == {id(value) for item in ours for name, value in away.state[item].items() if name != "step"}
    assert [len(group["params"]) for group in away.param_groups] == [2, 2]


@pytest.mark.parametrize(("sizes", "runs"), [((), []), ((9,), [1]), ((2, 2, 2, 9, 1, 1), [2, 1, 1, 2])])
def test_as_many_moments_visit_as_there_is_room_for(sizes, runs, monkeypatch):
    monkeypatch.setattr(optimizers, "VISITING_BYTES", 8 * 5.0)
    weights = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    assert [len(weights[part]) for part in optimizers._visits(weights)] == runs
    assert sum(len(weights[part]) for part in optimizers._visits(weights)) == len(sizes)


def test_moments_are_home_again_after_a_step_that_failed():
    (weight, _) = parameters()
    optimizer = make_optimizer([([weight], 1e-2)], Settings(), on_host=True)
    homes, groups = dict(optimizer.state[weight]), optimizer.param_groups
    weight.grad = torch.zeros_like(weight)
    optimizer.param_groups[0]["lr"] = torch.zeros(2)  # no number
    with pytest.raises((RuntimeError, ValueError)):
        optimizer.step()
    assert optimizer.param_groups is groups
    assert all(optimizer.state[weight][name] is value for name, value in homes.items())


def test_eight_bit_moments_stay_on_the_device():
    with pytest.raises(StageError, match="offload optimizer is for adamw"):
        make_optimizer([(parameters(), 1e-2)], Settings("adamw_8bit"), on_host=True)


def sharded_steps(ranks):
    """Weights and moments of this rank after a few steps, with moments on the host and without; kinds of moments."""
    results = []
    for on_host in (False, True):
        module = tiny.language_model().model
        parallel = parallelize(module, StageLayout(world_size=2, zero=3), ranks, dtype="fp32")
        weights = parallel.trained_parameters()
        optimizer = make_optimizer([(weights, 1e-3)], Settings(), on_host=on_host)
        for _ in range(3):
            parallel.call(torch.arange(12)[None], labels=torch.arange(12)[None]).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state = [own_part(value) for item in weights for _, value in sorted(optimizer.state[item].items())]
        kinds = {type(optimizer.state[item]["exp_avg"]).__name__ for item in weights}
        results.append(([own_part(item).detach().numpy() for item in weights], [item.numpy() for item in state], kinds))
    return results


def test_sharded_moments_on_the_host_change_no_bit():
    for plain, away in in_group(sharded_steps, 2):
        for kept, moved in zip(plain[:2], away[:2], strict=True):
            assert all((one == other).all() for one, other in zip(kept, moved, strict=True))
        assert away[2] == {"DTensor"}


def test_the_loss_scale_halves_on_overflow_and_grows_after_a_while():
    scaler = GradientScaler("fp16", CPU)
    assert scaler.scale(torch.tensor(2.0)) == 2.0 * 65536
    assert scaler.overflowed(float("inf"))
    assert scaler.overflowed(float("nan"))
    assert scaler.factor == 16384
    assert not any(scaler.overflowed(1.0) for _ in range(1999))
    again = GradientScaler("fp16", CPU)
    again.load_state_dict(scaler.state_dict())
    assert not again.overflowed(1.0)
    assert again.factor == 32768
    assert again.state_dict() == {"factor": 32768.0, "good_updates": 0}


def test_other_types_are_not_scaled():
    scaler = GradientScaler("bf16", CPU)
    assert scaler.factor == 1.0
    assert not scaler.overflowed(float("inf"))
    loss = torch.tensor(3.0)
    assert scaler.scale(loss) is loss
