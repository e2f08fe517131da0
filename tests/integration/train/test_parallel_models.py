"""Forward passes other than logits under every layout: token losses, scalar models, compiled models."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import tiny
from group import in_group

from charter.errors import StageError
from charter.inference.score import score_rows
from charter.models.engine_layout import StageLayout
from charter.models.parallel import (
    check_offload,
    parallelize,
)
from charter.models.preference import PreferenceModel, ScalarModel
from charter.models.ranks import Ranks
from charter.models.token_forward import token_losses

IDS = torch.arange(4 * 12).view(4, 12) % 400
MASK = torch.ones_like(IDS)
LAYOUTS = [
    StageLayout(world_size=2),
    StageLayout(world_size=2, zero=3, recompute="full"),
    StageLayout(world_size=2, tensor=2),
]


def language(call, ids_BT):
    return token_losses(call, ids_BT, torch.ones_like(ids_BT, dtype=torch.bool)).loss_sum


def scalar(call, ids_BT):
    return (call(ids_BT, torch.ones_like(ids_BT)) ** 2).sum()


def grouped(call, ids_BT):
    """Rows of 6 to 10 tokens, in two passes before one backward; only their last positions are asked for."""
    rows = [row[: 6 + row[0] % 5] for row in ids_BT.tolist()]
    model = PreferenceModel(scalar_model(), tiny.language_model(), {"pooling": "last"})
    return (score_rows(model, rows, [1] * len(rows), call=call, groups=2) ** 2).sum()


def scalar_model():
    found = ScalarModel(tiny.language_model())
    torch.nn.init.constant_(found.head.weight, 0.3)
    return found


KINDS = {"language": (lambda: tiny.language_model().model, language), "scalar": (scalar_model, scalar)} | {
    "groups": (scalar_model, grouped)
}


def gradients(ranks, layout):
    found = {}
    for kind, (make, loss) in KINDS.items():
        parallel = parallelize(make(), layout, ranks, dtype="fp32")
        loss(parallel.call, IDS[ranks.data_rank :: ranks.data_size]).backward()
        parallel.scale_gradients(ranks.data_size)
        whole = {
            name: item.grad.full_tensor() if hasattr(item.grad, "full_tensor") else item.grad
            for name, item in parallel.module.named_parameters()
        }
        with torch.no_grad():
            total = loss(parallel.module, IDS).item()
        found[kind] = {name: value.detach().numpy().copy() for name, value in whole.items()}, total
    return found


@pytest.fixture(scope="module")
def alone():
    return gradients(Ranks(), StageLayout())


@pytest.mark.parametrize("layout", LAYOUTS, ids=["ddp", "fsdp", "tensor"])
def test_token_losses_and_values_are_those_of_one_process(layout, alone):
    for found in in_group(gradients, 2, layout, tensor=layout.tensor):
        for kind, (expected, total) in alone.items():
            assert found[kind][1] == pytest.approx(total, rel=1e-5)
            assert found[kind][0].keys() == expected.keys()
            for name, value in expected.items():
                assert abs(found[kind][0][name] - value).max() < 1e-4 * max(1.0, abs(value).max()), name


@pytest.mark.thorough
def test_a_compiled_model_trains_what_an_eager_one_does():
    torch.manual_seed(0)
    eager = torch.nn.Linear(8, 8)
    compiled = torch.nn.Linear(8, 8)
    compiled.load_state_dict(eager.state_dict())
    parallel = parallelize(compiled, StageLayout(compile=True), Ranks(), dtype="fp32")
    assert parallel.call is not parallel.module
    for call in (eager, parallel.call):
        call(torch.ones(4, 8)).square().sum().backward()
    assert (eager.weight.grad - compiled.weight.grad).abs().max() < 1e-5
    assert parallel.full_state_dict().keys() == eager.state_dict().keys()


def test_offloading_that_a_layout_cannot_do_is_refused():
    cuda = torch.device("cuda")
    check_offload(StageLayout(world_size=2, zero=3, offload="all"), cuda)
    check_offload(StageLayout(offload="optimizer"), torch.device("cpu"))
    with pytest.raises(StageError, match="zero 3"):
        check_offload(StageLayout(offload="all"), cuda)
    with pytest.raises(StageError, match="offload all"):
        check_offload(StageLayout(world_size=2, zero=3, offload="optimizer"), cuda)
