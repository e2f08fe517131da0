"""DDP regroups gradients after its first backward pass: without warming, where a run was resumed shows in its bits."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from group import in_group

from charter.models.engine_layout import StageLayout
from charter.models.parallel import parallelize

STEPS, RESUMED_AT = 4, 2
WIDTH, LAYERS = 64, 12


class Stack(torch.nn.Module):
    """Layers that are not used in the order they are registered in, over more than one bucket of gradients."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
            self.wide = torch.nn.Linear(WIDTH, 6000)

    def forward(self, x):
        for layer in reversed(self.layers):
            x = torch.tanh(layer(x))
        return self.wide(x).square().mean()


def train(ranks, layout, module, optimizer, first, last, *, warms):
    parallel = parallelize(module, layout, ranks, dtype="fp32")

    def loss_at(step):
        generator = torch.Generator().manual_seed(100 * step + ranks.data_rank)
        return parallel.call(torch.randn(8, WIDTH, generator=generator))

    if warms:
        state = torch.random.get_rng_state()
        parallel.warm(lambda: loss_at(0))
        assert torch.equal(state, torch.random.get_rng_state())
    for step in range(first, last):
        optimizer.zero_grad(set_to_none=True)
        loss_at(step).backward()
        optimizer.step()


def weights_after(ranks, world, warms, resumed):
    layout = StageLayout(world_size=world)
    module = Stack()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.9)
    if not resumed:
        train(ranks, layout, module, optimizer, 0, STEPS, warms=warms)
    else:
        train(ranks, layout, module, optimizer, 0, RESUMED_AT, warms=warms)
        again = Stack()
        again.load_state_dict(module.state_dict())
        restored = torch.optim.SGD(again.parameters(), lr=1.0, momentum=0.9)
        restored.load_state_dict(optimizer.state_dict())
        train(ranks, layout, again, restored, RESUMED_AT, STEPS, warms=warms)
        module = again
    return b"".join(item.detach().numpy().tobytes() for item in module.parameters())


def all_weights(ranks, world):
    return {
        (warms, resumed): weights_after(ranks, world, warms, resumed)
        for warms in (True, False)
        for resumed in (True, False)
    }


@pytest.mark.parametrize("world", [3, 4])
def test_a_warmed_run_has_the_same_bits_wherever_it_was_resumed(world):
    for found in in_group(all_weights, world, world):
        assert found[True, True] == found[True, False]
        assert found[False, True] != found[False, False], "buckets are not regrouped any more: warming is needless"
