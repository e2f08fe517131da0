"""Forward passes other than logits under every layout: token losses, scalar models, compiled models."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

import tiny
from group import in_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from charter.errors import StageError
from charter.inference.score import score_rows
from charter.models import runtime, token_forward
from charter.models.engine_layout import CPU_VALUES, StageLayout
from charter.models.parallel import (
    check_offload,
    own_part,
    parallelize,
)
from charter.models.preference import PreferenceModel, ScalarModel
from charter.models.ranks import Ranks
from charter.models.sequence_split import split_gradient
from charter.models.sharded_load import decoder_layers
from charter.models.token_forward import token_losses
from charter.train.distillation import GivenWords, LikeliestWords

IDS = torch.arange(4 * 12).view(4, 12) % 400
MASK = torch.ones_like(IDS)
LAYOUTS = [
    StageLayout(world_size=2),
    StageLayout(world_size=2, zero=3, recompute="full"),
    StageLayout(world_size=2, tensor=2),
    StageLayout(world_size=2, tensor=2, sequence_parallel=True),
    StageLayout(world_size=2, tensor=2, sequence_parallel=True, recompute="full"),
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


@pytest.mark.parametrize("layout", LAYOUTS, ids=["ddp", "fsdp", "tensor", "sequence", "sequence, again"])
@pytest.mark.parametrize("values", [{}, CPU_VALUES], ids=["begun before", "begun now"])
def test_token_losses_and_values_are_those_of_one_process(layout, alone, values, monkeypatch):
    monkeypatch.setattr(runtime, "_CONFIGURED", dict(values))
    for found in in_group(gradients, 2, layout, tensor=layout.tensor):
        for kind, (expected, total) in alone.items():
            assert found[kind][1] == pytest.approx(total, rel=1e-5)
            assert found[kind][0].keys() == expected.keys()
            for name, value in expected.items():
                assert abs(found[kind][0][name] - value).max() < 1e-4 * max(1.0, abs(value).max()), name


def looked_up(ranks, vocabulary, ids):
    """Vectors of the tokens `ids`, this rank's part of their gradient, and the most elements that a backward makes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        table = torch.nn.Embedding(vocabulary, 16, padding_idx=3)
    if ranks.world_size > 1:
        parallelize_module(
            table, init_device_mesh("cpu", (ranks.world_size,)), RowwiseParallel(input_layouts=Replicate())
        )
        split_gradient(table)
    vectors = table(torch.tensor(ids))
    with Largest() as seen:
        (vectors * torch.arange(vectors.numel()).view_as(vectors)).sum().backward()
    return vectors.detach().numpy(), own_part(table.weight.grad).numpy(), seen.elements


class Largest(TorchDispatchMode):
    """The most elements of a local tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        out = operation(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(item.numel() for item in tree_leaves(out) if torch.is_tensor(item))])
        return out


@pytest.mark.parametrize("vocabulary", [40, 41], ids=["even", "uneven"])
def test_a_split_embedding_makes_its_part_of_the_gradient(vocabulary):
    ids = [[0, 3, vocabulary - 1, 20, 3], [20, 21, 5, 5, 0]]
    vectors, gradient, whole = looked_up(Ranks(), vocabulary, ids)
    assert whole == vocabulary * 16
    parts = in_group(looked_up, 2, vocabulary, ids, tensor=2)
    assert all(np.array_equal(found, vectors) for found, _, _ in parts)
    assert np.array_equal(np.concatenate([part for _, part, _ in parts]), gradient)
    assert all(largest == part.size for _, part, largest in parts)


def test_layers_are_compiled_where_asked_for_and_trained(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **given: compiled.append((type(self).__name__, given)))
    for asked, trained in ((True, True), (True, False), (False, True)):
        compiled.clear()
        parallelize(tiny.language_model().model, StageLayout(compile=asked), Ranks(), dtype="fp32", trained=trained)
        expected = [("LlamaDecoderLayer", {"dynamic": True})] * tiny.ARCHITECTURE.num_layers
        assert compiled == (expected if asked and trained else [])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("kind", ["language", "groups"])
def test_a_compiled_model_trains_what_an_eager_one_does(kind, recompute):
    make, loss = KINDS[kind]
    trained = {}
    for is_compiled in (False, True):
        parallel = parallelize(make(), StageLayout(compile=is_compiled, recompute=recompute), Ranks(), dtype="fp32")
        assert all((item._compiled_call_impl is not None) is is_compiled for item in decoder_layers(parallel.module))
        loss(parallel.call, IDS).backward()
        trained[is_compiled] = {name: item.grad for name, item in parallel.module.named_parameters()}
    for name, value in trained[False].items():
        assert (trained[True][name] - value).abs().max() < 1e-4 * max(1.0, value.abs().max()), name


def test_offloading_that_a_layout_cannot_do_is_refused():
    cuda = torch.device("cuda")
    check_offload(StageLayout(world_size=2, zero=3, offload="all"), cuda)
    check_offload(StageLayout(offload="optimizer"), torch.device("cpu"))
    with pytest.raises(StageError, match="zero 3"):
        check_offload(StageLayout(offload="all"), cuda)
    check_offload(StageLayout(world_size=2, zero=3, offload="optimizer"), cuda)


TOKENS, POSITIONS, WIDTH = 101, 40, 16
"""An odd vocabulary, so that processes have parts of different sizes."""


def split_figures(ranks, temperature, size):
    """Figures, losses and gradients where each process has some rows of the output projection; the largest array."""
    torch.manual_seed(3)
    token_forward.CPU_CHUNK = 16 * TOKENS  # chunks of 16 positions or little more
    hidden_NH = torch.randn(POSITIONS, WIDTH, requires_grad=True)
    whole_VH = torch.randn(TOKENS, WIDTH)
    target_N = torch.randint(0, TOKENS, (POSITIONS,))
    weights = (torch.rand(POSITIONS), torch.rand(POSITIONS))
    rows = list(torch.arange(TOKENS).chunk(size))[ranks.rank]
    part_VH = whole_VH[rows].requires_grad_()
    group = torch.distributed.group.WORLD
    own = None if size == 1 else token_forward.VocabularyPart(first=int(rows[0]), widest=51, group=group)
    values = []
    for summed in (True, False):
        hidden_NH.grad = part_VH.grad = None
        if summed:
            figures = token_forward.summed_token_loss(hidden_NH, part_VH, target_N, own=own)
            total = figures.loss_sum
        else:
            figures = token_forward.token_figures(hidden_NH, part_VH, target_N, temperature=temperature, own=own)
            total = (figures.log_probability_N * weights[0] + figures.entropy_N * weights[1]).sum()
        total.backward()
        values += [total, *figures[-3:], hidden_NH.grad, part_VH.grad]
    hidden_NH.grad = part_VH.grad = None
    likeliest = LikeliestWords(5, temperature).of_hidden(hidden_NH, part_VH, own)
    words = GivenWords(torch.cat([target_N[:, None], likeliest.word_NK], 1), temperature)
    given = words.of_hidden(hidden_NH, part_VH, own)
    (given.log_probability_NK * weights[0][:, None]).sum().backward()
    values += [*likeliest, given.log_probability_NK, given.entropy_N, hidden_NH.grad, part_VH.grad]
    return [item.detach().double().numpy().copy() for item in values]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_shared_vocabulary_gives_the_figures_of_a_whole_one(temperature, monkeypatch):
    monkeypatch.setattr(token_forward, "CPU_CHUNK", token_forward.CPU_CHUNK)  # restored: `split_figures` sets it here
    expected = split_figures(Ranks(), temperature, 1)
    parts = in_group(split_figures, 2, temperature, 2)
    for number, value in enumerate(expected):
        if value.shape[:1] == (TOKENS,):
            together = np.concatenate([part[number] for part in parts])
            np.testing.assert_allclose(together, value, rtol=1e-5, atol=1e-5)
            continue
        for part in parts:
            np.testing.assert_allclose(part[number], value, rtol=1e-5, atol=1e-5)


def largest_arrays(ranks, layout):
    """Elements of the largest array of a pass, by whether the output projection is asked for a sum or for figures."""
    token_forward.CPU_CHUNK = 16 * 512
    parallel = parallelize(tiny.language_model().model, layout, ranks, dtype="fp32")
    ids_BT = torch.arange(4 * 64).view(4, 64) % 400
    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            out = operation(*args, **(kwargs or {}))
            sizes.extend(item.numel() for item in tree_leaves(out) if isinstance(item, torch.Tensor))
            return out

    with Sizes():
        language(parallel.call, ids_BT).backward()
    return max(sizes)


def test_no_logits_of_all_positions_under_tensor_parallelism():
    positions, tokens = 4 * 63, tiny.language_model().model.config.vocab_size
    for largest in in_group(largest_arrays, 2, StageLayout(world_size=2, tensor=2), tensor=2):
        assert largest < positions * tokens / 2
