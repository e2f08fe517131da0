"""The work of the stages that train: language models, preference models, judges, DPO and PPO."""

from dataclasses import replace
from math import ceil

from charter.plan.work.corpus import Library
from charter.plan.work.phase import Counters, Workload
from charter.plan.work.phase_kinds import (
    answers,
    assume_length,
    assume_padding,
    forward,
    in_turns,
    question_tokens,
    reply_tokens,
    train,
    training_steps,
)
from charter.plan.work.roles import Models
from charter.spec.stage import DpoStage, JudgeStage, PpoStage, PreferenceModelStage, PretrainStage, SftStage

RATING_TOKENS = 40
"""Of the wording around a rated answer: 158 characters (`feedback/rating.py`) at about 4 to a token of English."""


def language_model(stage: PretrainStage | SftStage, models: Models, library: Library) -> Workload:
    """Pretraining (packed sequences) and supervised fine-tuning (one conversation per sequence)."""
    role = models.role("model", stage.init, trained=True, adapter=stage.adapter)
    corpus = library.corpus(stage.data, role.vocab_size)
    if isinstance(stage, PretrainStage):
        rows, tokens = ceil(corpus.texts * corpus.row_tokens / stage.seq_len), float(stage.seq_len)
    else:
        rows, tokens = ceil(corpus.texts), min(corpus.row_tokens, stage.seq_len)
        assume_padding(library)
    steps, ragged = training_steps(stage, rows), isinstance(stage, SftStage)
    phase = train("model", steps=steps, batch=stage.global_batch, tokens=tokens, longest=stage.seq_len, ragged=ragged)
    return Workload(
        roles=(role,), phases=(phase,), counters=Counters(tokens=phase.sequences * tokens, records=phase.sequences)
    )


def preference_model(stage: PreferenceModelStage, models: Models, library: Library) -> Workload:
    """Two sequences per pair through a model with a scalar head."""
    role = models.role("model", stage.init, trained=True, adapter=stage.adapter, scalar=True)
    corpus = library.corpus(stage.data, role.vocab_size)
    tokens = min(corpus.row_tokens, stage.seq_len)
    steps = training_steps(stage, corpus.rows)
    assume_padding(library)
    phase = train(
        "model",
        steps=steps,
        batch=2 * stage.global_batch,
        tokens=tokens,
        longest=stage.seq_len,
        unit=2,
        logit_share=1 / stage.seq_len if stage.pooling == "last" else 1.0,
    )
    pairs = steps * stage.global_batch
    return Workload(roles=(role,), phases=(phase,), counters=Counters(tokens=phase.sequences * tokens, pairs=pairs))


def judge(stage: JudgeStage, models: Models, library: Library) -> Workload:
    """Two questions per pair: both orders, or each answer alone."""
    role = models.role("model", stage.init, trained=True, adapter=stage.adapter)
    corpus = library.corpus(stage.pairs, role.vocab_size)
    tokens = min(question_tokens(corpus, stage.format, library), stage.seq_len)
    steps = training_steps(stage, corpus.rows)
    assume_padding(library)
    phase = train("model", steps=steps, batch=2 * stage.global_batch, tokens=tokens, longest=stage.seq_len, unit=2)
    pairs = steps * stage.global_batch
    return Workload(roles=(role,), phases=(phase,), counters=Counters(tokens=phase.sequences * tokens, pairs=pairs))


def dpo(stage: DpoStage, models: Models, library: Library) -> Workload:
    """Both answers of every pair through the trained policy and the frozen reference."""
    policy = models.role("policy", stage.init, trained=True, adapter=stage.adapter)
    reference = models.role("reference", stage.init)
    corpus = library.corpus(stage.data, policy.vocab_size)
    tokens = min(corpus.row_tokens, stage.seq_len)
    steps, batch = training_steps(stage, corpus.rows), 2 * stage.global_batch
    assume_padding(library)
    update = train("policy", steps=steps, batch=batch, tokens=tokens, longest=stage.seq_len, unit=2)
    score = forward("reference log-probabilities", "reference", steps, batch, update.prompt_tokens)
    return Workload(
        roles=(policy, reference),
        phases=(score, update),
        counters=Counters(tokens=update.sequences * tokens, pairs=steps * stage.global_batch),
        together=True,
    )


def ppo(stage: PpoStage, models: Models, library: Library) -> Workload:
    """Generation, scoring passes of every role and updates of what is trained, rollout by rollout.

    Estimators that compare answers (rloo, grpo) have no value model, a run without a KL penalty no reference, and
    rewards that are functions no model: they are called on the host, in processes of their own.
    """
    policy = models.role("policy", stage.policy, trained=True, adapter=stage.adapter)
    scorer = stage.preference_model
    start, origin = (stage.policy, "policy") if scorer is None else (scorer, "reward model")
    value = models.role("value", start, trained=True, adapter=stage.adapter, scalar=True)
    reference = (models.role("reference", stage.policy),) if stage.has_reference else ()
    reward = () if scorer is None else (models.role("reward", scorer, scalar=True),)
    judge = () if stage.judge is None else (models.answering(stage.judge_role, stage.judge),)
    learning = ("policy", "value") if stage.has_value_model else ("policy",)
    if stage.has_value_model:
        library.assume("ppo.value model", f"starts from the {origin}, same size", "charter.train.ppo")
    prompts = library.prompts(stage.prompts, policy.vocab_size)
    prompt = float(stage.max_prompt_tokens)
    replies, most_replies = reply_tokens(stage.environment)
    read = prompt + stage.max_new_tokens + replies
    longest = prompt + stage.max_new_tokens + most_replies
    answered = stage.max_new_tokens / read
    library.assume(
        "ppo.prompt tokens",
        prompt,
        f"every prompt is padded to max_prompt_tokens; their mean is {prompts.prompt_tokens:.0f}, which engines that "
        "pack sequences read",
    )
    rollouts = ceil(stage.episodes / stage.rollout_batch)
    assume_length(library, stage)
    question = read + RATING_TOKENS
    scoring = (
        *(
            forward(f"score {role.name}", role.name, rollouts, stage.rollout_batch, read, logit_share=answered)
            for role in (policy, *reference, *reward)
        ),
        *(
            forward("rate answers", role.name, rollouts, stage.rollout_batch, question, logit_share=1 / question)
            for role in judge
        ),
        *(
            forward(f"score {role}", role, rollouts, stage.rollout_batch, read, logit_share=answered)
            for role in learning[1:]
        ),
    )
    functions = [item for item in stage.rewards if item.kind == "function"]
    if functions:
        library.assume(
            "ppo.reward functions",
            ", ".join(item.name for item in functions),
            "called on the host between sampling and the update; their time is not counted",
        )
    if stage.equal_groups == "refill":
        library.assume(
            "ppo.dynamic sampling",
            "each group once",
            "groups that are sampled again in place of equal ones are not counted; with a success rate p they are "
            f"E[p^{stage.samples_per_prompt} + (1 - p)^{stage.samples_per_prompt}] of all",
        )
    updates = rollouts * ceil(stage.rollout_batch / stage.minibatch) * stage.ppo_epochs
    batch = min(stage.minibatch, stage.rollout_batch)
    training = tuple(
        train(role, steps=updates, batch=batch, tokens=read, longest=longest, ragged=False, logit_share=answered)
        for role in learning
    )
    return Workload(
        **models.whereabouts(
            policy, *((value,) if stage.has_value_model else ()), *reference, *reward, *judge, may_choose=False
        ),
        phases=(
            in_turns(
                replace(
                    answers("generate", "policy", rollouts * stage.rollout_batch, stage, prompt, ragged=False),
                    unpadded_tokens=min(prompts.prompt_tokens, prompt),
                    served=stage.generator == "vllm",
                ),
                stage.environment,
                library,
            ),
            *scoring,
            *training,
        ),
        counters=Counters(
            tokens=training[0].tokens,
            generated_tokens=float(rollouts * stage.rollout_batch * stage.expected_new_tokens),
            episodes=float(rollouts * stage.rollout_batch),
        ),
        together=True,
    )
