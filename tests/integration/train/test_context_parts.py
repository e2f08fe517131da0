"""Rows that several processes share (context parallelism): loss and gradients are those of one process."""

import itertools
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]

import tiny
from group import in_group
from test_attention import flash, flex, rows_of, varlen  # noqa: F401
from torch.utils._python_dispatch import TorchDispatchMode

from charter.errors import StageError
from charter.inference.score import score_rows
from charter.models.engine_layout import StageLayout
from charter.models.language_model import new_language_model
from charter.models.parallel import parallelize
from charter.models.preference import PreferenceModel, ScalarModel
from charter.models.ranks import Ranks
from charter.models.runtime import EAGER, FLASH, FLEX
from charter.physics.kept_activations import LayerKind, kept_by_layer
from charter.train.packing import VARLEN, model_inputs, own_parts, pack, packed_batch
from charter.train.pretrain import language_loss
from charter.train.setup import Setup
from charter.train.token_data import collate

CPU = torch.device("cpu")
KEYS = (4, 2, 1)
"""Heads of keys beside 4 of queries: shared by two or four processes, or repeated for them."""
WIDTH = 40
LENGTHS = (17, 6, 31, 1, 12, 23)
"""Few are multiples of the processes; the answer of each is its last third."""
SIXTEEN = {FLASH, VARLEN}
LATE = "late"
"""One row, of which the first process has nothing to learn."""


def conversations():
    return [
        replace(row, is_answer=tuple(n * 3 >= 2 * len(row.ids) for n in range(len(row.ids))))
        for row in rows_of(LENGTHS)
    ]


def batch_of(attention, packing, multiple):
    """(ids, counted, inputs beside them) of the whole batch."""
    rows = conversations()
    if packing == LATE:
        return *collate([max(rows, key=lambda row: len(row.ids))], padding=0), None
    if not packing:
        return *collate(rows, padding=0), None
    index = pack([len(row.ids) for row in rows], WIDTH)
    batch = packed_batch([[rows[item] for item in row] for row in index], padding=0, multiple=multiple)
    batch = batch.flattened(multiple) if attention in SIXTEEN else batch
    return batch.ids_BT, batch.counted_BT, model_inputs(batch, attention=attention, device=CPU)


def step(ranks, attention, packing, keys, recompute="none", backward=True, zero=3):
    """Loss, its terms and tokens over all processes, and the complete gradients."""
    architecture = replace(tiny.ARCHITECTURE, num_heads=4, num_kv_heads=keys)
    model = new_language_model(architecture, tiny.train_tokenizer(tiny.TEXTS, vocab_size=400), seed=3)
    name = "sdpa" if attention == VARLEN else attention
    model.model.eval().config._attn_implementation = name
    layout = StageLayout(world_size=ranks.world_size, context=ranks.context_size, zero=zero, recompute=recompute)
    parallel = parallelize(model.model, layout, ranks, dtype="fp32")
    ids_BT, counted_BT, more = batch_of(attention, packing, ranks.context_size)
    parts = own_parts(ranks, model.model.config, name, WIDTH)
    with torch.set_grad_enabled(backward):
        result = language_loss(
            parallel.call,
            ids_BT,
            counted_BT,
            dtype="bf16" if attention in SIXTEEN else "fp32",
            device=CPU,
            tokens=sum(LENGTHS),
            more=more,
            parts=parts,
        )
    sums = {"loss": result.loss_sum.item(), "terms": result.terms, **result.counters}
    sums |= {name: value.item() for name, value in result.sums.items()}
    if not backward:
        return ranks.total(sums), {}
    result.loss_sum.backward()
    parallel.scale_gradients(ranks.summed_size)
    gradients = {
        name: (item.grad.full_tensor() if hasattr(item.grad, "full_tensor") else item.grad).detach().numpy().copy()
        for name, item in parallel.module.named_parameters()
    }
    return ranks.total(sums), gradients


def steps(ranks, cases):
    return [step(ranks, *case) for case in cases]


def check(cases, sizes=(2,), *, near):
    expected = steps(Ranks(), cases)
    for size in sizes:
        for found in in_group(steps, size, cases, context=size):
            for case, (sums, gradients), (wanted, whole) in zip(cases, found, expected, strict=True):
                assert sums == pytest.approx(wanted, rel=near), case
                assert gradients.keys() == whole.keys()
                for name, value in whole.items():
                    assert abs(gradients[name] - value).max() < near * max(1.0, abs(value).max()), (case, name)


def test_parts_of_rows_compute_what_whole_rows_do():
    cases = [*itertools.product(("sdpa", EAGER), (False, True), KEYS), ("sdpa", True, 2, "full")]
    check([*cases, (EAGER, False, 4, "selective")], near=1e-5)
    check([("sdpa", LATE, 4), ("sdpa", LATE, 4, "none", True, 0)], near=1e-5)
    check([("sdpa", True, 2), (EAGER, False, 1)], (4,), near=1e-5)


@pytest.mark.usefixtures("varlen")
def test_parts_of_rows_keep_the_bounds_of_conversations():
    check([*itertools.product((FLASH, VARLEN), (True,), KEYS), (FLASH, False, 2)], near=2e-2)


@pytest.mark.usefixtures("flex")
def test_parts_of_rows_keep_the_blocks_of_a_mask():
    check([(FLEX, False, 2, "none", False), (FLEX, True, 1, "none", False)], near=1e-5)


def scored_step(ranks, pooling, recompute):
    """Scores of answers in rows of several lengths, and the complete gradients of a sum of these."""
    architecture = replace(tiny.ARCHITECTURE, num_heads=4, num_kv_heads=2)
    language = new_language_model(architecture, tiny.train_tokenizer(tiny.TEXTS, vocab_size=400), seed=3)
    scalar = ScalarModel(language).eval()
    with torch.no_grad():
        scalar.head.weight.copy_(torch.linspace(-1, 1, scalar.head.weight.numel())[None])
    model = PreferenceModel(scalar, language, {"pooling": pooling, "context": "full", "seq_len": WIDTH})
    layout = StageLayout(world_size=ranks.world_size, context=ranks.context_size, zero=3, recompute=recompute)
    parallel = parallelize(scalar, layout, ranks, dtype="fp32")
    parts = own_parts(ranks, language.model.config, "sdpa", WIDTH)
    rows = [row.ids for row in conversations()]
    answers = [max(1, len(row) // 3) for row in rows]
    score_B = score_rows(model, rows, answers, call=parallel.call, groups=2, row_parts=parts)
    (score_B * torch.arange(1.0, len(rows) + 1)).sum().backward()
    parallel.scale_gradients(ranks.summed_size)
    return score_B.tolist(), {
        name: (item.grad.full_tensor() if hasattr(item.grad, "full_tensor") else item.grad).numpy().copy()
        for name, item in scalar.named_parameters()
    }


def scored_steps(ranks, cases):
    return [scored_step(ranks, *case) for case in cases]


@pytest.mark.parametrize("size", [2, 4])
def test_scores_of_shared_rows_are_those_of_complete_ones(size):
    """The score of a row is read where its answer is or ends: one process has it, or several have parts of it."""
    cases = [("last", "none"), ("mean", "none"), ("last", "full")]
    expected = scored_steps(Ranks(), cases)
    for shared in in_group(scored_steps, size, cases, context=size):
        for (scores, gradients), (wanted, complete) in zip(shared, expected, strict=True):
            assert scores == pytest.approx(wanted, rel=1e-5, abs=1e-5)
            assert gradients.keys() == complete.keys()
            for name, value in complete.items():
                assert abs(gradients[name] - value).max() < 1e-5 * max(1.0, abs(value).max()), name


def refusal(ranks, **changes):
    config = tiny.language_model().model.config
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(StageError) as refused:
        own_parts(ranks, config, "sdpa", WIDTH)
    return str(refused.value)


def test_rows_that_cannot_be_shared_are_refused():
    three, two = Ranks(context_size=3), Ranks(context_size=2)
    assert "2 attention heads (2 of keys) cannot be shared by 3 processes" in refusal(three)
    growing = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert "positions that depend on the longest row (dynamic)" in refusal(two, rope_parameters=growing)
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    assert "attend to the last 8 tokens only" in refusal(two, **sliding)
    assert own_parts(Ranks(), None, "sdpa", WIDTH) is None


def test_each_process_draws_dropout_of_its_own():
    layouts = [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]
    ranks = [Ranks(data_rank=a, data_size=b, context_rank=c, context_size=d) for a, b, c, d in layouts]
    assert len({Setup(None, one, None, None).own_parts() for one in ranks}) == 4
    assert Setup(None, Ranks(), None, None).own_parts() == ()


def deaf(ranks):
    """A model with a layer whose attention does not go by the table of transformers."""
    model = tiny.language_model().model
    layer = model.model.layers[1]
    layer.self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    parallel = parallelize(model, StageLayout(world_size=2, context=2, zero=3), ranks, dtype="fp32")
    parts = own_parts(ranks, model.config, "sdpa", WIDTH)
    ids_BT, counted_BT, _ = batch_of("sdpa", False, 2)
    with pytest.raises(StageError, match="1 of 2 layers of llama see parts of rows"):
        language_loss(parallel.call, ids_BT, counted_BT, dtype="fp32", device=CPU, parts=parts)


def test_a_layer_that_exchanges_nothing_is_noticed():
    in_group(deaf, 2, context=2)


SHAPE = replace(tiny.ARCHITECTURE, hidden_size=64, num_heads=4, num_kv_heads=2, intermediate_size=176)


def saved_bytes(ranks, layers):
    """Bytes that a decoder saves for the backward pass in this process, each storage once, weights left out."""
    shape = replace(SHAPE, num_layers=layers)
    model = new_language_model(shape, tiny.train_tokenizer(tiny.TEXTS, vocab_size=400), seed=3).model
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved, alive = {}, []

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    parts = own_parts(ranks, model.config, "sdpa", 128)
    ids_BP = parts.cut(torch.arange(2 * 128).view(2, 128) % 400)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.get_decoder()(use_cache=False, **parts.inputs({}, ids_BP))
    return sum(saved.values())


def saved_by_layer(ranks):
    return (saved_bytes(ranks, 3) - saved_bytes(ranks, 1)) / 2


def test_a_process_keeps_what_the_plan_lists():
    kind = LayerKind(seq_len=128, value_bytes=4.0, implementation="huggingface", exchange=True)
    listed = kept_by_layer(SHAPE, kind)
    planned = (listed.replicated + listed.sharded) * 2 * 128 / 2
    for saved in in_group(saved_by_layer, 2, context=2):
        assert saved == pytest.approx(planned, rel=0.03)


def counted(ranks):
    """Bytes of one exchange each way, by what is sent."""
    sent = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "alltoall" in function.name():
                sent.append(args[1].nbytes)
            return function(*args, **(kwargs or {}))

    with Counting():
        step(ranks, "sdpa", False, 2)
    return sent


def test_an_exchange_sends_queries_keys_and_values():
    """Per layer and direction: (A + 2 K) D and A D values for each of the own positions, padding included."""
    positions = len(LENGTHS) * -(-max(LENGTHS) // 2)
    a_head = positions * tiny.ARCHITECTURE.hidden_size // 4 * torch.float32.itemsize
    there, back = (4 + 2 * 2) * a_head, 4 * a_head
    for sent in in_group(counted, 2, context=2):
        assert sorted(sent) == sorted([there, back] * 2 * tiny.ARCHITECTURE.num_layers)
