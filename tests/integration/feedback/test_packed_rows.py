"""Rows that share their beginning give what each gives alone; models that cannot are left alone."""

import pytest

torch = pytest.importorskip("torch")

from charter.feedback.local_models import choice_log_probabilities
from charter.inference import score
from charter.inference.score import (
    LARGEST_FAMILY,
    families_of,
    is_packable,
    last_token_log_probabilities,
    next_token_log_probabilities,
)

pytestmark = pytest.mark.torch
BEGINNING, OTHER = list(range(10, 40)), list(range(50, 75))
ROWS = [
    [*BEGINNING, 100, 101, 102],
    [5, 6],
    [*OTHER, 7],
    [*BEGINNING, 110],
    [*OTHER, 8, 9, 10, 11, 12],
    [*BEGINNING, 100, 101, 103],
    list(range(80, 95)),
]


def test_rows_with_a_common_beginning_are_families():
    found = {item.rows: item.shared for item in families_of(ROWS)}
    assert found == {(0, 5, 3): 30, (2, 4): 25, (1,): 0, (6,): 0}


def test_equal_rows_share_all_but_their_last_token():
    assert [item.shared for item in families_of([BEGINNING, BEGINNING])] == [29]


def test_a_row_that_another_begins_with_keeps_its_last_token():
    assert [(item.rows, item.shared) for item in families_of([[*BEGINNING, 1, 2], BEGINNING])] == [((1, 0), 29)]


def test_what_is_common_to_all_rows_does_not_make_one_family_of_them():
    rows = [[*BEGINNING, number, number] for number in range(100, 110)]
    found = families_of(rows)
    assert [len(item.rows) for item in found] == [LARGEST_FAMILY, LARGEST_FAMILY, 2]
    assert sorted(row for item in found for row in item.rows) == list(range(10))


def test_packed_rows_are_read_as_each_alone(judge):
    tokens = [65, 66, 300]
    found = last_token_log_probabilities(judge, ROWS, tokens)
    with torch.no_grad():
        for row, values in zip(ROWS, found, strict=True):
            alone = judge.model(input_ids=torch.tensor([row])).logits[0, -1].log_softmax(-1)[tokens]
            assert torch.allclose(values, alone, atol=1e-5)


def test_the_same_rows_give_the_same_bits_and_many_go_in_several_passes(judge, monkeypatch):
    once = last_token_log_probabilities(judge, ROWS, [65])
    assert torch.equal(once, last_token_log_probabilities(judge, ROWS, [65]))
    sizes = []
    read = score._read

    def noted(model, rows, part, **more):
        widest = max(item.shared + sum(len(rows[row]) - item.shared for row in item.rows) for item in part)
        sizes.append((len(part), widest))
        return read(model, rows, part, **more)

    monkeypatch.setattr(score, "_read", noted)
    monkeypatch.setattr(score, "PASS_TOKENS", 40)
    assert torch.allclose(once, last_token_log_probabilities(judge, ROWS, [65]), atol=1e-5)
    assert len(sizes) > 1
    assert all(count == 1 or count * widest <= 40 for count, widest in sizes), "padding included"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_other_models_are_asked_row_by_row(judge, attention):
    judge.model.set_attn_implementation(attention)
    assert is_packable(judge) == (attention == "sdpa")
    ids = [judge.tokenizer(letter)["input_ids"][0] for letter in ("A", "B")]
    expected = next_token_log_probabilities(judge, ROWS, ids)
    found = choice_log_probabilities(judge, [(row, 1) for row in ROWS], ("A", "B"), dtype="fp32")
    assert torch.allclose(torch.tensor(found), expected, atol=1e-5)


def test_a_sliding_window_is_no_place_for_a_mask_of_ones_own(judge):
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=64,
        vocab_size=320, sliding_window=8,
    )  # fmt: skip
    judge.model = MistralForCausalLM(config)
    assert not is_packable(judge)
