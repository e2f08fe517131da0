"""The work of the stages that train: language models, preference models, judges, DPO and PPO."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from charter.plan.work.corpus import Library
from charter.plan.work.phase import Counters, Phase, Workload
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


ASSUMED_CRITERIA = 16
"""Criteria of a rubric whose file a plan does not read: as many principles as Bai et al. 2022 use."""


def _ratings(
    stage: PpoStage, roles: Mapping[str, str], rollouts: int, longest: float, library: Library
) -> tuple[Phase, ...]:
    """Questions to the judges: one for each answer, or for each criterion; of two answers, both orders."""
    if not stage.rewards:
        return tuple(_rate("rate answers", role, rollouts, stage.rollout_batch, longest) for role in roles.values())
    judged = [item for item in stage.rewards if item.kind == "judge"]
    phases = []
    for item in judged:
        rubric, questions, tokens = item.rubric, 1, longest
        if rubric is not None:
            questions = rubric.per_prompt or len(rubric.only) or ASSUMED_CRITERIA
            if not rubric.per_prompt and not rubric.only:
                said = "criteria of a rubric; a plan does not read them: say `only` or `per_prompt`"
                library.assume(f"ppo.criteria of {item.name}", ASSUMED_CRITERIA, said)
            if rubric.ask == "pairwise":
                questions *= 2 * rubric.opponents
                tokens += stage.max_new_tokens
        name = "rate answers" if len(judged) == 1 else f"rate answers: {item.name}"
        phases.append(_rate(name, roles[str(item.model)], rollouts, stage.rollout_batch * questions, tokens))
    return tuple(phases)


def _rate(name: str, role: str, rollouts: int, questions: int, tokens: float) -> Phase:
    question = tokens + RATING_TOKENS
    return forward(name, role, rollouts, questions, question, logit_share=1 / question)


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
    critic = (value,) if stage.has_value_model else ()
    judges = {
        name: models.answering(f"judge {number}" if number > 1 else stage.judge_role, name)
        for number, name in enumerate(stage.judges, start=1)
    }
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
    scoring = (
        *(
            forward(f"score {role.name}", role.name, rollouts, stage.rollout_batch, read, logit_share=answered)
            for role in (policy, *reference, *reward)
        ),
        *_ratings(stage, {name: role.name for name, role in judges.items()}, rollouts, read, library),
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
        **models.whereabouts(policy, *critic, *reference, *reward, *judges.values(), may_choose=False),
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
