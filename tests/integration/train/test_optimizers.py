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
from charter.models.parallel import parallelize
from charter.train.optimizers import GradientScaler, make_optimizer, set_learning_rate

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
