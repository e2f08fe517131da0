import pytest

torch = pytest.importorskip("torch")

from charter.data.dataset import Turn
from charter.inference.generate import SamplingSettings, answer_texts, choose, generate, pad_left, uniform_draws
from charter.models.chat import encode_prompt

pytestmark = pytest.mark.torch
GREEDY = SamplingSettings(max_new_tokens=12, temperature=0)
SAMPLED = SamplingSettings(max_new_tokens=12)


@pytest.fixture
def prompts(policy):
    questions = ["Tell me about rain.", "Tea?", "Tell me what you know about the moon and old maps."]
    return [encode_prompt(policy.tokenizer, (Turn("user", question),)) for question in questions]


def rows(answers):
    return [
        [token for token, keep in zip(row, mask, strict=True) if keep]
        for row, mask in zip(answers.answer_BR.tolist(), answers.answer_mask_BR.tolist(), strict=True)
    ]


def test_an_answer_does_not_depend_on_its_neighbours_seeds(policy, prompts):
    first = rows(generate(policy, prompts, seeds=[1, 2, 3], settings=SAMPLED))
    other = rows(generate(policy, prompts, seeds=[9, 2, 8], settings=SAMPLED))
    assert first[1] == other[1]
    assert first[0] != other[0]
    assert first[2] != other[2]


def test_the_same_batch_gives_the_same_answers(policy, prompts):
    once = rows(generate(policy, prompts, seeds=[1, 2, 3], settings=SAMPLED))
    assert once == rows(generate(policy, prompts, seeds=[1, 2, 3], settings=SAMPLED))


def test_temperature_0_is_greedy_as_transformers_is(policy, prompts):
    ours = rows(generate(policy, prompts, seeds=[0, 0, 0], settings=GREEDY))
    for prompt, answer in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt])
        theirs = policy.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=policy.end_id,
            pad_token_id=policy.padding_id,
        )
        assert answer == theirs[0, len(prompt) :].tolist()


def test_padding_at_the_left_changes_no_greedy_answer(policy, prompts):
    together = rows(generate(policy, prompts, seeds=[0, 0, 0], settings=GREEDY))
    alone = [rows(generate(policy, [prompt], seeds=[0], settings=GREEDY))[0] for prompt in prompts]
    wide = rows(generate(policy, prompts, seeds=[0, 0, 0], settings=GREEDY, prompt_width=64))
    assert together == alone == wide


def test_the_cache_gives_what_the_whole_sequence_gives(policy, prompts):
    answers = generate(policy, prompts, seeds=[4, 5, 6], settings=SAMPLED)
    draws = uniform_draws([4, 5, 6], 12)
    for index, (prompt, answer) in enumerate(zip(prompts, rows(answers), strict=True)):
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([prompt + answer])).logits[0]
        for step, token in enumerate(answer):
            position = len(prompt) - 1 + step
            assert choose(logits[position : position + 1], draws[index : index + 1, step], SAMPLED).item() == token


def biased(policy, token, amount):
    """A model that writes one token most of the time: its output row is made large in the direction it reads."""
    head = policy.model.lm_head

    def add(module, inputs, output):
        output = output.clone()
        output[..., token] += amount
        return output

    return head.register_forward_hook(add)


def test_the_end_token_is_banned_until_the_minimum_length(policy, prompts):
    handle = biased(policy, policy.end_id, 50.0)
    try:
        free = generate(policy, prompts, seeds=[1, 2, 3], settings=SAMPLED)
        settings = SamplingSettings(max_new_tokens=12, min_new_tokens=5)
        held = generate(policy, prompts, seeds=[1, 2, 3], settings=settings)
    finally:
        handle.remove()
    assert [row for row in rows(free)] == [[policy.end_id]] * 3
    assert all(len(row) == 6 and row[-1] == policy.end_id and policy.end_id not in row[:-1] for row in rows(held))


def test_what_follows_the_end_token_is_masked_and_not_part_of_the_text(policy, prompts):
    answers = generate(policy, prompts, seeds=[1, 2, 3], settings=SamplingSettings(max_new_tokens=40))
    for row, mask in zip(answers.answer_BR.tolist(), answers.answer_mask_BR.tolist(), strict=True):
        if policy.end_id in row:
            end = row.index(policy.end_id)
            assert mask == [True] * (end + 1) + [False] * (len(row) - end - 1)
            assert set(row[end + 1 :]) <= {policy.padding_id}
    assert all("<|" not in text for text in answer_texts(policy, answers))


def test_choose_inverts_the_distribution_function():
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).repeat(4, 1)
    draws = torch.tensor([0.0, 0.199, 0.201, 0.999], dtype=torch.float64)
    assert choose(logits, draws, SAMPLED).tolist() == [0, 0, 1, 2]


def test_top_p_keeps_the_likeliest_tokens_up_to_p():
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).repeat(3, 1)
    draws = torch.tensor([0.0, 0.624, 0.999], dtype=torch.float64)
    settings = SamplingSettings(max_new_tokens=1, top_p=0.7)
    assert choose(logits, draws, settings).tolist() == [1, 1, 2]


def test_sampled_shares_follow_the_probabilities():
    draws = torch.cat(list(uniform_draws(range(4000), 1)))
    chosen = choose(torch.log(torch.tensor([[0.2, 0.5, 0.3]])).repeat(4000, 1), draws, SAMPLED)
    shares = torch.bincount(chosen, minlength=3) / 4000
    # Five standard deviations of a share of one half.
    assert torch.allclose(shares, torch.tensor([0.2, 0.5, 0.3]), atol=0.04)


def test_pad_left_makes_the_mask_of_the_real_tokens():
    ids, mask = pad_left([[5, 6, 7], [8], []], padding=0)
    assert ids.tolist() == [[5, 6, 7], [0, 0, 8], [0, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1], [0, 0, 0]]


def long_and_short(policy):
    """Prompts of very different length, whose answers end at different places."""
    words = [1, 40, 2, 44, 3, 60, 1, 50]
    return [encode_prompt(policy.tokenizer, (Turn("user", "tea and rain " * count),)) for count in words]


def test_prompts_of_like_length_go_together_and_every_answer_stays_its_own(policy):
    from charter.inference.generate import _groups

    prompts = long_and_short(policy)
    settings = SamplingSettings(max_new_tokens=6, temperature=0)
    assert len(_groups(prompts, 6, torch.device("cpu"))) > 1, "or this shows nothing"
    assert len(_groups(prompts, 6, torch.device("cuda"))) == 1
    together = rows(generate(policy, prompts, seeds=[0] * 8, settings=settings))
    assert together == [rows(generate(policy, [prompt], seeds=[0], settings=settings))[0] for prompt in prompts]


def test_rows_that_leave_early_take_nothing_from_those_that_stay(policy):
    """Ends at given lengths: rows leave the batch, and with the longest prompts the columns that only they had."""
    prompts = long_and_short(policy)
    ends = [30, 2, 9, 3, 70, 1, 5, 4]
    steps = [0] * 8

    def watch(row_L, logits_LV, token_L):
        for row in row_L.tolist():
            steps[row] += 1
        return torch.tensor([steps[row] >= ends[row] for row in row_L.tolist()])

    settings = SamplingSettings(max_new_tokens=70, min_new_tokens=70, temperature=0)
    found = generate(policy, prompts, seeds=[0] * 8, settings=settings, watch=watch).answer_BR.tolist()
    free = SamplingSettings(max_new_tokens=70, min_new_tokens=70, temperature=0)
    for prompt, answer, end in zip(prompts, found, ends, strict=True):
        alone = generate(policy, [prompt], seeds=[0], settings=free).answer_BR[0].tolist()
        assert answer[:end] == alone[:end]
        assert set(answer[end:]) <= {policy.padding_id}


def test_the_roomy_cache_holds_what_the_models_own_cache_holds(policy):
    from transformers.cache_utils import DynamicCache

    from charter.inference.generate import keep_rows, new_cache

    generator = torch.Generator().manual_seed(0)
    ours, theirs = new_cache(policy.model.config), DynamicCache(config=policy.model.config)
    for count in (5, 1, 1, 70, 1, 2):
        new = torch.randn((4, 1, count, 16), generator=generator)
        for layer in range(2):
            found = ours.update(new, -new, layer)
            for own, other in zip(found, theirs.update(new, -new, layer), strict=True):
                assert torch.equal(own, other)
    assert ours.get_seq_length() == theirs.get_seq_length() == 80
    kept = torch.tensor([0, 3])
    assert keep_rows(ours, kept, 4) == 4
    theirs.batch_select_indices(kept)
    new = torch.ones((2, 1, 1, 16))
    assert torch.equal(ours.update(new, new, 0)[0], theirs.update(new, new, 0)[0][:, :, 4:])


def test_caches_that_forget_are_left_as_they_are():
    """A sliding window drops columns by itself."""
    from transformers import MistralConfig
    from transformers.cache_utils import DynamicSlidingWindowLayer

    from charter.inference.generate import keep_rows, new_cache

    cache = new_cache(MistralConfig(num_hidden_layers=2, sliding_window=8))
    assert {type(layer) for layer in cache.layers} == {DynamicSlidingWindowLayer}
    for layer in range(2):
        cache.update(torch.ones((4, 1, 5, 16)), torch.ones((4, 1, 5, 16)), layer)
    assert keep_rows(cache, torch.tensor([1]), 3) == 0
    assert cache.layers[0].keys.shape == (1, 1, 5, 16)
