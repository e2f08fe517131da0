"""Packing: nothing lost or counted twice, rows well filled, and no conversation that sees another."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import tiny

from charter.data.dataset import Turn
from charter.models.chat import Encoded, encode_conversations
from charter.train.packing import attention_mask, model_inputs, pack, packed_batch

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
LENGTHS = st.integers(1, 64).flatmap(
    lambda seq_len: st.tuples(st.just(seq_len), st.lists(st.integers(1, seq_len), max_size=60))
)


@given(LENGTHS)
def test_every_conversation_is_in_exactly_one_row_and_no_row_is_too_long(case):
    seq_len, lengths = case
    rows = pack(lengths, seq_len)
    assert sorted(item for row in rows for item in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[item] for item in row) <= seq_len for row in rows)


@given(LENGTHS)
def test_no_two_rows_could_have_been_one(case):
    seq_len, lengths = case
    filled = sorted(sum(lengths[item] for item in row) for row in pack(lengths, seq_len))
    assert len(filled) < 2 or filled[0] + filled[1] > seq_len


@settings(max_examples=40)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=7))
def test_few_conversations_need_hardly_more_rows_than_the_fewest(lengths):
    """11/9 of the optimum and 6/9 more (Dosa 2007 for first fit; best fit has the same bound), by trying all orders."""

    def rows_of(order):
        used = []
        for item in order:
            for index, free in enumerate(used):
                if free >= item:
                    used[index] -= item
                    break
            else:
                used.append(12 - item)
        return len(used)

    fewest = min(rows_of(order) for order in itertools.permutations(lengths))
    assert len(pack(lengths, 12)) <= 11 / 9 * fewest + 6 / 9


def test_a_conversation_goes_where_it_fits_best():
    """After 6 and 5 in rows of 10 there are 4 and 5 free: the 4 fills the first row, first fit is no better here."""
    assert pack([6, 5, 4, 5], 10) == ((0, 2), (1, 3))
    assert pack([5, 6, 4], 10) == ((1, 2), (0,))


def test_rows_of_real_lengths_are_nearly_full():
    lengths = [min(1024, int(random.Random(i).lognormvariate(5.2, 0.8)) + 1) for i in range(5000)]
    rows = pack(lengths, 1024)
    assert sum(lengths) / (len(rows) * 1024) > 0.995


@pytest.mark.parametrize("length", [0, 9])
def test_a_length_that_no_row_holds_is_refused(length):
    with pytest.raises(ValueError, match=f"conversation 1 has {length} tokens; a row holds 1 to 8"):
        pack([8, length], 8)


# Batches


def conversations(tokenizer, count=7, max_tokens=64):
    """Of different lengths; the last of several turns, one cut at the left so that it begins inside an answer."""
    found = []
    for i in range(count):
        turns = [Turn("user", "tea " * (i + 1)), Turn("assistant", "bread and rain " * (1 + i % 3))]
        turns += [Turn("user", "and maps?"), Turn("assistant", "Read a book.")] * (i == count - 1)
        found.append(encode_conversations(tokenizer, [turns], max_tokens=5 if i == 0 else max_tokens)[0])
    assert all(found[0].is_answer)
    return found


def summed_cross_entropy(logits, ids, counted):
    """Sum of -log p over the counted tokens, each predicted from the tokens before it."""
    targets = torch.where(counted, ids, -100)[:, 1:]
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), reduction="sum")


def losses_of(model, batch, attention="sdpa"):
    inputs = model_inputs(batch, attention=attention, device=CPU)
    logits = model.model(**inputs, use_cache=False).logits
    return summed_cross_entropy(logits, batch.ids_BT, batch.counted_BT)


def alone(model, row):
    ids, counted = torch.tensor([row.ids]), torch.tensor([row.is_answer])
    return summed_cross_entropy(model.model(input_ids=ids, use_cache=False).logits, ids, counted)


def gradients(model, loss):
    model.model.zero_grad()
    loss.backward()
    return {name: item.grad.clone() for name, item in model.model.named_parameters()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_loss_and_gradients_are_those_of_the_conversations_alone(attention):
    model = tiny.language_model()
    model.model.set_attn_implementation(attention)
    rows = conversations(model.tokenizer)
    packed = pack([len(row.ids) for row in rows], 96)
    assert max(len(row) for row in packed) > 1
    batch = packed_batch([[rows[i] for i in row] for row in packed], padding=model.padding_id)
    expected = [alone(model, row) for row in rows]
    together = losses_of(model, batch, attention)
    torch.testing.assert_close(together, torch.stack(expected).sum(), rtol=1e-5, atol=0)
    found, wanted = gradients(model, together), gradients(model, torch.stack(expected).sum())
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=2e-5)


def test_without_the_mask_the_loss_would_be_another():
    """The test above would notice a model that ignores what it is given."""
    model = tiny.language_model()
    rows = conversations(model.tokenizer)
    batch = packed_batch([rows], padding=model.padding_id)
    inputs = model_inputs(batch, attention="sdpa", device=CPU)
    everything = {**inputs, "attention_mask": torch.ones_like(batch.ids_BT)}
    leaking = summed_cross_entropy(model.model(**everything).logits, batch.ids_BT, batch.counted_BT)
    assert abs(leaking.item() / losses_of(model, batch).item() - 1) > 1e-4


def test_a_conversation_changes_nothing_in_its_neighbours():
    model = tiny.language_model()
    rows = conversations(model.tokenizer, count=3)
    other = Encoded(tuple(reversed(rows[1].ids)), rows[1].is_answer)
    first, second = (packed_batch([[rows[0], item, rows[2]]], padding=0) for item in (rows[1], other))
    logits = [model.model(**model_inputs(batch, attention="sdpa", device=CPU)).logits[0] for batch in (first, second)]
    begin, end = len(rows[0].ids), len(rows[0].ids) + len(rows[1].ids)
    torch.testing.assert_close(logits[0][:begin], logits[1][:begin], rtol=0, atol=0)
    torch.testing.assert_close(logits[0][end:], logits[1][end:], rtol=0, atol=0)
    assert not torch.equal(logits[0][begin:end], logits[1][begin:end])


def test_every_token_is_there_once_and_only_those_with_something_before_them_are_counted():
    rows = [Encoded((5, 6, 7), (False, True, True)), Encoded((8, 9), (True, True)), Encoded((4,), (True,))]
    batch = packed_batch([[rows[0], rows[1]], [rows[2]]], padding=3)
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8, 9], [4, 3, 3, 3, 3]]
    assert batch.counted_BT.int().tolist() == [[0, 1, 1, 0, 1], [0, 0, 0, 0, 0]]
    assert batch.positions_BT.tolist() == [[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]]
    assert batch.segments_BT.tolist() == [[1, 1, 1, 2, 2], [1, 0, 0, 0, 0]]
    assert batch.tokens == 6


def test_the_mask_lets_a_token_see_its_own_conversation_up_to_itself():
    mask = attention_mask(torch.tensor([[1, 1, 2, 0]]))[0, 0].int().tolist()
    assert mask == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_flattened_rows_are_what_flash_attention_reads_and_have_the_same_loss():
    """Flash attention finds conversations by their positions; so does the mask that transformers makes for sdpa."""
    model = tiny.language_model()
    rows = conversations(model.tokenizer)
    batch = packed_batch([rows[:3], rows[3:5], rows[5:]], padding=model.padding_id)
    flat = batch.flattened()
    assert flat.ids_BT[0].tolist() == [token for row in rows for token in row.ids]
    inputs = model_inputs(flat, attention="flash_attention_2", device=CPU)
    lengths = [len(row.ids) for row in rows]
    assert inputs["cu_seq_lens_q"].tolist() == [0, *itertools.accumulate(lengths)]
    assert inputs["cu_seq_lens_q"] is inputs["cu_seq_lens_k"]
    assert inputs["cu_seq_lens_q"].dtype == torch.int32
    assert (inputs["max_length_q"], inputs["max_length_k"]) == (max(lengths), max(lengths))
    logits = model.model(**inputs, use_cache=False).logits
    loss = summed_cross_entropy(logits, flat.ids_BT, flat.counted_BT)
    torch.testing.assert_close(loss, losses_of(model, batch), rtol=1e-5, atol=0)
    torch.testing.assert_close(losses_of(model, flat), losses_of(model, batch), rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match="one row without padding"):
        model_inputs(batch, attention="flash_attention_2", device=CPU)
