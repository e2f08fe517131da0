"""The real vLLM behind the generator's interface, on a tiny fp32 llama with heads of 64 (vLLM's CPU attention)."""

import os
import signal

import pytest

torch = pytest.importorskip("torch")

from charter.errors import StageError
from charter.inference.generate import (
    SamplingSettings,
    generate,
)
from charter.inference.generator import (
    VllmGenerator,
    VllmOptions,
)
from charter.models.chat import train_tokenizer
from charter.models.language_model import new_language_model
from charter.spec.architecture import Architecture
from charter.train.ppo_sequences import answer_log_probabilities, as_sequences
from vllm_environment import PYTHON, vllm_python

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ARCHITECTURE = Architecture(
    hidden_size=128,
    num_layers=2,
    num_heads=2,
    intermediate_size=256,
    vocab_size=512,
    tied_embeddings=True,
    max_position_embeddings=256,
)
PROMPTS = [[5, 6, 7, 9], [8, 20], [30, 31, 32], [100, 101, 102, 103, 104, 105, 106]]
SEEDS = [11, 2**62 + 5, 13, 14]
TOLERANCE_NATS = 2e-4
"""Of fp32 log-probabilities by other kernels: sums in another order, relative 2^-23 per term, logits of a few units."""


def new_policy(seed):
    """A model with weights so large that its answers depend on prompt and position."""
    policy = new_language_model(ARCHITECTURE, train_tokenizer(["tea and bread"] * 4, vocab_size=400), seed=seed)
    move(policy, seed)
    return policy


def move(policy, seed):
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in policy.model.parameters():
            value.add_(torch.randn(value.shape, generator=made) * 0.05)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """vLLM, started once; each test sends its own weights."""
    folder = tmp_path_factory.mktemp("vllm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON, str(vllm_python(os.environ)))
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        generator = VllmGenerator(new_policy(0), folder, dtype="fp32", options=VllmOptions(max_model_len=128))
    yield generator
    generator.close()


@pytest.fixture
def loaded(engine):
    policy = new_policy(1)
    engine.update_weights(policy.model.state_dict().items(), version=1)
    return engine, policy


def settings(**changes):
    return SamplingSettings(**{"max_new_tokens": 24, "temperature": 1.0, **changes})


def sample(engine, **changes):
    return engine.sample(PROMPTS, seeds=SEEDS, settings=settings(**changes))


def test_greedy_answers_are_our_own(loaded):
    engine, policy = loaded
    theirs = sample(engine, temperature=0.0)
    ours = generate(policy, PROMPTS, seeds=SEEDS, settings=settings(temperature=0.0))
    assert theirs.answer_BR.tolist() == ours.answer_BR.tolist()
    assert theirs.answer_mask_BR.tolist() == ours.answer_mask_BR.tolist()
    assert len({tuple(row) for row in ours.answer_BR.tolist()}) == len(PROMPTS)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_at_the_sampling_temperature(loaded, temperature):
    engine, policy = loaded
    answers = sample(engine, temperature=temperature)
    sequences = as_sequences(answers, answer_width=answers.answer_BR.shape[1], padding=policy.padding_id)
    with torch.no_grad():
        ours = answer_log_probabilities(policy.model, sequences, temperature=temperature, dtype="fp32")[0]
    mask = answers.answer_mask_BR
    assert mask.sum() > 20
    torch.testing.assert_close(answers.log_probability_BR[mask], ours[mask], atol=TOLERANCE_NATS, rtol=0)


def test_the_same_seeds_in_the_same_batch_give_the_same_answers_and_others_do_not(loaded):
    engine, _ = loaded
    first, again = sample(engine), sample(engine)
    assert first.answer_BR.tolist() == again.answer_BR.tolist()
    other = engine.sample(PROMPTS, seeds=[seed + 1 for seed in SEEDS], settings=settings())
    assert first.answer_BR.tolist() != other.answer_BR.tolist()


def test_after_an_update_the_answers_are_those_of_the_new_weights(loaded):
    engine, policy = loaded
    before = sample(engine, temperature=0.0).answer_BR.tolist()
    for version in (2, 3):
        move(policy, version)
        engine.update_weights(policy.model.state_dict().items(), version=version)
        after = engine.sample(PROMPTS, seeds=SEEDS, settings=settings(temperature=0.0), version=version)
        ours = generate(policy, PROMPTS, seeds=SEEDS, settings=settings(temperature=0.0))
        assert after.answer_BR.tolist() == ours.answer_BR.tolist() != before


def test_answers_end_at_the_end_token_and_not_before_they_may(loaded):
    engine, policy = loaded
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(0.01)
    engine.update_weights(policy.model.state_dict().items(), version=2)
    many = [PROMPTS[0]] * 64
    answers = engine.sample(
        many, seeds=list(range(64)), settings=settings(max_new_tokens=100, min_new_tokens=5), version=2
    )
    lengths = answers.answer_mask_BR.sum(1)
    ended = ((answers.answer_BR == policy.end_id) & answers.answer_mask_BR).sum(1)
    last = answers.answer_BR.gather(1, lengths[:, None] - 1).squeeze(1)
    assert 0 < int(ended.sum()) < 64
    assert ended.tolist() == (last == policy.end_id).long().tolist()
    assert int(lengths.min()) >= 5
    assert set(lengths[ended == 0].tolist()) == {100}


def test_another_version_than_the_loaded_is_refused(loaded):
    engine, _ = loaded
    with pytest.raises(StageError, match="asks for policy version 2, the generator has policy version 1"):
        engine.sample(PROMPTS, seeds=SEEDS, settings=settings(), version=2)


def test_weights_that_are_not_all_there_are_refused_before_they_are_sent(loaded):
    engine, policy = loaded
    some = [item for item in policy.model.state_dict().items() if "layers.1.mlp.up_proj" not in item[0]]
    with pytest.raises(StageError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        engine.update_weights(some, version=2)
    assert engine.version is None


def test_a_killed_vllm_is_a_stage_error(loaded):
    engine, _ = loaded
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(StageError, match=r"vLLM \(process \d+\) (has ended|ended during sample)"):
        sample(engine)
    assert engine._process.is_running is False
