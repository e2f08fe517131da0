"""What a model reads, and that saving and loading changes nothing."""

import json

import pytest

torch = pytest.importorskip("torch")

import tiny

from charter.data.dataset import Turn
from charter.errors import DataError
from charter.feedback.local_models import log_odds
from charter.feedback.wording import (
    CHOICES,
    YES_NO_MEAN,
    yes_no_mean_text,
)
from charter.inference import score
from charter.inference.score import score_answers, score_rows
from charter.models.chat import encode_answer, encode_conversations, encode_prompt
from charter.models.language_model import (
    load_language_model,
    set_dropout,
)
from charter.models.preference import PreferenceModel, ScalarModel, load_preference_model, pool, pooled_positions

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def model():
    return tiny.language_model()


def test_only_assistant_turns_and_their_end_token_are_counted(model):
    turns = (Turn("user", "tea?"), Turn("assistant", "yes"), Turn("user", "rain?"), Turn("assistant", "no"))
    encoded = encode_conversations(model.tokenizer, [turns], max_tokens=100)[0]
    counted = [token for token, keep in zip(encoded.ids, encoded.is_answer, strict=True) if keep]
    assert model.tokenizer.decode(counted) == "yes<|endoftext|>no<|endoftext|>"
    whole = model.tokenizer.decode(encoded.ids)
    assert whole == "<|user|>tea?<|assistant|>yes<|endoftext|><|user|>rain?<|assistant|>no<|endoftext|>"


def test_an_opening_of_the_assistant_is_read_and_not_learnt(model):
    turns = (Turn("assistant", "tea"), Turn("user", "rain?"), Turn("assistant", "no"))
    encoded = encode_conversations(model.tokenizer, [turns], max_tokens=100)[0]
    counted = [token for token, keep in zip(encoded.ids, encoded.is_answer, strict=True) if keep]
    assert model.tokenizer.decode(encoded.ids).startswith("<|assistant|>tea<|endoftext|><|user|>rain?")
    assert model.tokenizer.decode(counted) == "no<|endoftext|>"


def test_a_long_conversation_loses_its_beginning_not_its_answer(model):
    turns = (Turn("user", "tea " * 60), Turn("assistant", "yes"))
    encoded = encode_conversations(model.tokenizer, [turns], max_tokens=8)[0]
    assert len(encoded.ids) == 8
    assert model.tokenizer.decode(encoded.ids).endswith("<|assistant|>yes<|endoftext|>")


def test_prompt_and_answer_join_to_the_conversation(model):
    turns = (Turn("user", "Where is the map?"),)
    joined = encode_prompt(model.tokenizer, turns) + encode_answer(model.tokenizer, turns, "Here.")
    (encoded,) = encode_conversations(model.tokenizer, [(*turns, Turn("assistant", "Here."))], max_tokens=100)
    assert tuple(joined) == encoded.ids


CHATML = (
    "{% for turn in messages %}{{ '<|im_start|>' + turn.role + '\n' + turn.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_turns_that_a_template_refuses_are_told_by_their_roles():
    strict = tiny.language_model().tokenizer
    strict.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(DataError, match="these turns: system, user; it says: System role not supported"):
        encode_prompt(strict, (Turn("system", "be brief"), Turn("user", "tea?")))


@pytest.fixture
def chatml():
    """A base model whose template ends turns with another token than texts end with (Qwen2.5, Gemma, Phi-3)."""
    own = tiny.language_model()
    own.tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    own.tokenizer.chat_template = CHATML
    return own


def test_answers_end_where_the_template_ends_a_turn(model, chatml):
    assert model.end_id == model.tokenizer.eos_token_id
    assert chatml.end_id == chatml.tokenizer.convert_tokens_to_ids("<|im_end|>")
    learnt = encode_answer(chatml.tokenizer, (Turn("user", "tea?"),), "yes")
    assert chatml.end_id in learnt
    assert chatml.tokenizer.eos_token_id not in learnt


def test_servers_of_a_saved_model_stop_at_that_token(chatml, tmp_path):
    chatml.save(tmp_path)
    stops = json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"]
    assert stops == [chatml.end_id, chatml.tokenizer.eos_token_id]


def test_saved_and_loaded_weights_are_the_same_bits(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = load_language_model(tmp_path / "model")
    before, after = model.model.state_dict(), loaded.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_directory_without_config_is_refused_with_what_was_found(tmp_path):
    (tmp_path / "weights.bin").write_text("x")
    with pytest.raises(DataError, match=r"no config\.json here \(found weights\.bin\)"):
        load_language_model(tmp_path)


def test_missing_weights_are_refused_not_made_up(model, tmp_path):
    from safetensors.torch import load_file, save_file

    model.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(key for key in tensors if "mlp" in key)
    save_file({key: value for key, value in tensors.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match="weights do not match"):
        load_language_model(tmp_path)


def test_preference_model_survives_saving(model, tmp_path):
    scalar = ScalarModel(model)
    torch.nn.init.normal_(scalar.head.weight)
    settings = {"pooling": "mean", "context": "full", "seq_len": 64, "score_mean": 1.0, "score_deviation": 2.0}
    PreferenceModel(scalar, model, settings).save(tmp_path)
    loaded = load_preference_model(tmp_path)
    rows, lengths = [[5, 6, 7, 8], [9, 10, 11]], [2, 1]
    with torch.no_grad():
        before = score_rows(PreferenceModel(scalar.eval(), model, settings), rows, lengths)
        after = score_rows(PreferenceModel(loaded.scalar.eval(), loaded.language_model, loaded.settings), rows, lengths)
    assert torch.equal(before, after)
    assert loaded.settings == settings


def test_pooling_reads_the_answer_only():
    values = torch.tensor([[9.0, 1.0, 3.0, 9.0]])
    mask = torch.tensor([[False, True, True, False]])
    for pooling, wanted in (("last", 3.0), ("mean", 2.0)):
        read = pooled_positions(mask, pooling=pooling)
        assert pool(values[read], read.flatten().nonzero().squeeze(1), read).item() == wanted


def test_padding_does_not_change_a_score(model):
    scalar = ScalarModel(model).eval()
    torch.nn.init.normal_(scalar.head.weight)
    reward = PreferenceModel(scalar, model, {"pooling": "last", "context": "full", "seq_len": 64})
    with torch.no_grad():
        alone = score_rows(reward, [[5, 6, 7]], [2])
        beside = score_rows(reward, [[5, 6, 7], [8] * 12], [2, 3])
    assert beside[0].item() == pytest.approx(alone[0].item(), abs=1e-5)


def test_the_mean_format_reads_the_choice_after_every_token_of_the_answer(model):
    question = yes_no_mean_text((Turn("user", "tea?"),), "Read a book about tea.", "Which is kinder?")
    odds, _ = log_odds(model, [question], CHOICES[YES_NO_MEAN], max_tokens=200, dtype="fp32")

    def ids(text):
        return model.tokenizer(text, add_special_tokens=False)["input_ids"]

    pieces = [ids(part.text) for part in question.parts]
    whole = [token for piece in pieces for token in piece]
    read = sum(len(piece) for piece in pieces[3:])
    yes, no = (ids(choice)[0] for choice in CHOICES[YES_NO_MEAN])
    with torch.no_grad():
        logits = model.model(input_ids=torch.tensor([whole])).logits[0, -read:]
    assert odds.item() == pytest.approx((logits[:, yes] - logits[:, no]).mean().item(), abs=1e-5)
    assert read > len(ids(" Read a book about tea."))


def test_questions_of_other_lengths_beside_it_do_not_change_a_mean(model):
    answers = ("Yes.", "Read a book. " * 5)
    texts = [yes_no_mean_text((Turn("user", "tea?"),), answer, "Which is kinder?") for answer in answers]
    settings = {"max_tokens": 200, "dtype": "fp32"}
    together, _ = log_odds(model, texts, CHOICES[YES_NO_MEAN], **settings)
    alone = [log_odds(model, [text], CHOICES[YES_NO_MEAN], **settings)[0].item() for text in texts]
    assert together.tolist() == pytest.approx(alone, abs=1e-5)


def test_dropout_changes_training_and_not_evaluation():
    dropped = tiny.language_model()
    plain = tiny.language_model()
    set_dropout(dropped.model, 0.5)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert torch.equal(dropped.model.eval()(input_ids=ids).logits, plain.model.eval()(input_ids=ids).logits)
        assert not torch.equal(dropped.model.train()(input_ids=ids).logits, plain.model(input_ids=ids).logits)


def test_shared_scoring_passes_have_a_bound_of_tokens(monkeypatch):
    """As many in every process whatever the lengths; 64 answers of 4,096 tokens at once took eight times the bytes."""
    passes = []

    def noted(model, rows, lengths, **given):
        passes.append(len(rows))
        return torch.zeros(len(rows))

    monkeypatch.setattr(score, "score_rows", noted)
    model = tiny.language_model()
    settings = {"pooling": "last", "context": "all", "seq_len": 40, "score_mean": 0.0, "score_deviation": 1.0}
    reward = PreferenceModel(ScalarModel(model), model, settings)
    asked = [([Turn("user", "Tea?")], "Yes. " * (1 + number)) for number in range(7)]
    monkeypatch.setattr(score, "SCORING_TOKENS", 100)
    assert score_answers(reward, asked, groups=1).shape == (7,)
    assert passes == [2, 2, 2, 1]
    passes.clear()
    monkeypatch.setattr(score, "SCORING_TOKENS", 10)
    score_answers(reward, asked, groups=1)
    assert passes == [1] * 7
