"""Work of every kind of stage, from its fields and the size of its data: building blocks, answering, training."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from charter.engines import capabilities
from charter.physics.generation import USUAL_SPREAD, ResponseLengths
from charter.plan.phase import (
    PADDING_GROWTH,
    PADDING_SOURCE,
    Counters,
    EndpointUse,
    Role,
    RolePhase,
    Workload,
    expected_turns,
    in_turns,
    padded,
    reply_tokens,
)
from charter.plan.pipeline_names import NOTHING, Corpus, Library, Models
from charter.plan.rl_work import assume_rollouts, rollout_records
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import Environment
from charter.spec.stage import (
    CritiqueStage,
    DpoStage,
    EvalStage,
    GenerateStage,
    JudgeStage,
    LabelStage,
    PreferenceModelStage,
    PrepareStage,
    PretrainStage,
    SftStage,
)
from charter.spec.stage_base import Optimization, Sampling, Stage

# -------- The building blocks of workloads: one phase each, and what they assume.

PRINCIPLE_TOKENS = 50.0
"""Mean tokens of a principle with the frame of its question; the shipped constitution has 30 to 60."""
BYTES_PER_TOKEN_OF_TEXT = 4.0
"""Bytes of UTF-8 English per token, for the size of written records."""
LONGEST_OVER_MEAN = 3.0
"""Cut-off of a judged text over its mean length, where no stage field says it."""
FEEDBACK_SOURCE = "wording of the questions in charter.feedback"


def train(
    role: str,
    *,
    steps: float,
    batch: int,
    tokens: float,
    longest: float,
    ragged: bool = True,
    unit: int = 1,
    logit_share: float = 1.0,
) -> RolePhase:
    """Optimizer steps on one role; no sequence is longer than `longest`."""
    return RolePhase(
        name=f"train {role}",
        work="train",
        role=role,
        steps=steps,
        batch=batch,
        prompt_tokens=tokens,
        longest_tokens=longest,
        ragged=ragged,
        unit=unit,
        logit_share=logit_share,
    )


def forward(
    name: str,
    role: str,
    steps: float,
    batch: int,
    tokens: float,
    *,
    logit_share: float = 1.0,
    ragged: bool = False,
) -> RolePhase:
    """A forward pass over whole sequences: log-probabilities, rewards, values or choices."""
    return RolePhase(
        name=name,
        work="score",
        role=role,
        steps=steps,
        batch=batch,
        prompt_tokens=tokens,
        longest_tokens=LONGEST_OVER_MEAN * tokens if ragged else tokens,
        ragged=ragged,
        logit_share=logit_share,
    )


def answers(
    name: str, role: str, sequences: float, stage: Sampling, prompt_tokens: float, *, ragged: bool = True
) -> RolePhase:
    """Answers are counted at their longest: batch decoding ends with the longest answer of the batch.

    That is `max_new_tokens`, or the longest of a batch around `mean_new_tokens` where the stage says it.

    Prompts are padded to the longest of the batch, except where the stage pads them to a fixed width.
    """
    unpadded = prompt_tokens
    if ragged:
        prompt_tokens = padded(prompt_tokens, stage.rollout_batch, longest=float(stage.max_prompt_tokens))
    return RolePhase(
        name=name,
        work="generate",
        role=role,
        steps=ceil(sequences / stage.rollout_batch),
        batch=stage.rollout_batch,
        prompt_tokens=prompt_tokens,
        unpadded_tokens=unpadded if ragged else 0.0,
        new_tokens=longest_answer(stage),
        mean_new_tokens=float(stage.mean_new_tokens or 0),
        longest_tokens=prompt_tokens + stage.max_new_tokens,
        read_share=1 / stage.answers_together,
    )


def longest_answer(stage: Sampling) -> float:
    """Expected tokens of the longest answer of a batch.

    >>> from charter.spec.stage import GenerateStage
    >>> said = {"policy": "p", "prompts": ("d",), "max_new_tokens": 2000, "rollout_batch": 16}
    >>> longest_answer(GenerateStage(**said)), round(longest_answer(GenerateStage(**said, mean_new_tokens=200)), -2)
    (2000.0, 500.0)
    """
    if stage.mean_new_tokens is None or stage.mean_new_tokens >= stage.max_new_tokens:
        return float(stage.max_new_tokens)
    lengths = ResponseLengths(mean=stage.mean_new_tokens, limit=stage.max_new_tokens, spread=USUAL_SPREAD)
    return lengths.longest_of(stage.rollout_batch)


def question_tokens(pairs: Corpus, format: str, library: Library) -> float:
    """Tokens of the judge's question about a pair: one answer of it, or both."""
    assume_question(library)
    answers = 2 if format == "multiple_choice" else 1
    return pairs.prompt_tokens + answers * pairs.response_tokens + PRINCIPLE_TOKENS


def questions_per_pair(format: str, both_orders: bool) -> int:
    """Two answers asked apart, or both orders of one question, double the questions."""
    return 2 if format != "multiple_choice" or both_orders else 1


def assume_padding(library: Library) -> None:
    """Note how much padding is counted."""
    library.assume("padding: 1 + x ln(sequences of a micro-batch)", PADDING_GROWTH, PADDING_SOURCE, "2026-11")


def assume_length(library: Library, stage: Sampling) -> None:
    """Note how long answers are taken to be."""
    environment: Environment | None = getattr(stage, "environment", None)
    if environment is not None:
        again = "mean_turns, else max_turns; each reads all before it again, with replies of observation_tokens"
        library.assume("turns of an answer", expected_turns(environment), again, "2026-11")
        library.assume("seconds of a tool's call", environment.mean_tool_time, "mean_tool_time of the stage", "2026-11")
    if stage.mean_new_tokens is not None:
        spread = f"lognormal, deviation {USUAL_SPREAD:g} of the mean (judgement), cut at max_new_tokens"
        library.assume("answer length where a stage says a mean", "mean_new_tokens", spread, "2026-11")
        return
    library.assume("answer length", "max_new_tokens", "a batch decodes until its longest answer ends", "2026-11")


def assume_question(library: Library) -> None:
    """Note how long questions are taken to be."""
    library.assume("tokens of a principle and its question", PRINCIPLE_TOKENS, FEEDBACK_SOURCE, "2026-11")


def training_steps(stage: Optimization, rows: float) -> float:
    """Optimizer steps: as given, or `ceil(epochs x rows / global batch)`; one epoch when neither is given."""
    if stage.steps is not None:
        return float(stage.steps)
    epochs = 1.0 if stage.epochs is None else stage.epochs
    return float(ceil(epochs * rows / stage.global_batch))


# -------- The work of the stages that write or read text without training: critique, label, generate, eval, prepare.


def critique(stage: CritiqueStage, models: Models, library: Library) -> Workload:
    """One answer, then critique and revision as often as asked; each round reads what came before."""
    policy = models.answering("policy", stage.policy)
    critic = models.answering("critic", stage.critic)
    source = library.prompts(stage.prompts, policy.vocab_size)
    count = float(stage.num_prompts or source.rows)
    prompt = min(source.prompt_tokens, stage.max_prompt_tokens)
    assume_length(library, stage)
    assume_question(library)
    new = float(stage.expected_new_tokens)
    example = prompt + 3 * new + 2 * PRINCIPLE_TOKENS
    critiqued, revised = (
        min(
            stage.few_shot * example + prompt + rounds * (new + PRINCIPLE_TOKENS),
            float(stage.max_prompt_tokens),
        )
        for rounds in (1, 2)
    )
    phases = (
        answers("answer", "policy", count, stage, prompt),
        answers("critique", "critic", count * stage.revisions, stage, critiqued, ragged=False),
        answers("revise", "critic", count * stage.revisions, stage, revised, ragged=False),
    )
    generated = count * new * (1 + 2 * stage.revisions)
    return Workload(
        **models.whereabouts(policy, critic),
        phases=phases,
        counters=Counters(generated_tokens=generated, records=count * stage.revisions),
        data_bytes=(generated + count * prompt) * BYTES_PER_TOKEN_OF_TEXT,
    )


def label(stage: LabelStage, models: Models, library: Library) -> Workload:
    """Pairs sampled from the policy, and one or two questions to the judge about each pair."""
    judge = models.answering("judge", stage.judge)
    existing = library.corpus(stage.candidates, judge.vocab_size)
    roles: tuple[Role | EndpointUse, ...] = (judge,)
    phases: tuple[RolePhase, ...] = ()
    sampled = NOTHING
    if stage.pairs and stage.policy is not None:
        policy = models.answering("policy", stage.policy)
        source = library.prompts(stage.prompts, policy.vocab_size)
        prompt = min(source.prompt_tokens, stage.max_prompt_tokens)
        sampled = Corpus(rows=stage.pairs, prompt_tokens=prompt, response_tokens=stage.expected_new_tokens)
        phases = (answers("sample pairs", "policy", 2.0 * stage.pairs, stage, prompt),)
        roles = (policy, judge)
        assume_length(library, stage)
    per_pair = questions_per_pair(stage.format, stage.both_orders) * stage.principles_per_pair
    corpora = [
        (name, part) for name, part in (("judge sampled pairs", sampled), ("judge given pairs", existing)) if part.rows
    ]
    questions = tuple(
        forward(
            name,
            "judge",
            ceil(per_pair * part.rows / stage.rollout_batch),
            stage.rollout_batch,
            tokens,
            logit_share=1 / tokens,
            ragged=part is existing,
        )
        for name, part in corpora
        for tokens in [judged_tokens(part, stage, library)]
    )
    questions = models.voted(stage, questions)
    if stage.chain_of_thought:
        questions = tuple(
            phase
            for question, (_, part) in zip(questions, corpora, strict=True)
            for phase in (_reasoning(question, stage, per_pair * part.rows), question)
        )
    pairs = sampled.rows + existing.rows
    reasons = per_pair * pairs * stage.reasoning_tokens if stage.chain_of_thought else 0
    return Workload(
        **models.whereabouts(*roles),
        phases=(*phases, *questions),
        counters=Counters(
            tokens=sum(phase.tokens for phase in questions if phase.work == "score"),
            generated_tokens=sampled.rows * 2 * stage.expected_new_tokens + reasons,
            pairs=pairs,
            records=pairs,
        ),
        data_bytes=pairs
        * (sampled.row_tokens + sampled.response_tokens + existing.row_tokens)
        * BYTES_PER_TOKEN_OF_TEXT,
    )


def judged_tokens(part: Corpus, stage: LabelStage, library: Library) -> float:
    """Tokens before the judge's choice: the question, examples like it in front, its own reasons."""
    question = question_tokens(part, stage.format, library)
    return question * (1 + stage.few_shot) + (stage.reasoning_tokens if stage.chain_of_thought else 0)


def _reasoning(question: RolePhase, stage: LabelStage, sequences: float) -> RolePhase:
    """The judge's reasons before one kind of question."""
    tokens = question.prompt_tokens - stage.reasoning_tokens
    return RolePhase(
        name=question.name.replace("judge", "reason about"),
        work="generate",
        role="judge",
        steps=ceil(sequences / stage.rollout_batch),
        batch=stage.rollout_batch,
        prompt_tokens=tokens,
        new_tokens=float(stage.reasoning_tokens),
        longest_tokens=tokens + stage.reasoning_tokens,
    )


def generate(stage: GenerateStage, models: Models, library: Library) -> Workload:
    """Answers to prompts, or new prompts after some of the given ones."""
    policy = models.answering("policy", stage.policy)
    source = library.prompts(stage.prompts, policy.vocab_size)
    count, read = float(stage.num_prompts or source.rows), source.prompt_tokens
    if stage.makes == "prompts":
        assume_question(library)
        read = stage.few_shot * source.prompt_tokens + PRINCIPLE_TOKENS
    else:
        count *= stage.answers_per_prompt
    assume_length(library, stage)
    phase = answers("generate", "policy", count, stage, min(read, float(stage.max_prompt_tokens)))
    return Workload(
        **models.whereabouts(policy),
        phases=(phase,),
        counters=Counters(generated_tokens=count * stage.expected_new_tokens, records=count),
        data_bytes=phase.tokens * BYTES_PER_TOKEN_OF_TEXT,
    )


def evaluate(stage: EvalStage, models: Models, library: Library) -> Workload:
    """Answers of every policy, and what judge and preference models make of them and of held-out pairs."""
    writers = [("policy", stage.policy), ("against", stage.against), ("control", stage.control)]
    roles: list[Role | EndpointUse] = [models.role(role, name) for role, name in writers if name is not None]
    prompts = library.prompts(stage.prompts, roles[0].vocab_size)
    pairs = library.corpus(stage.pairs, roles[0].vocab_size)
    count = float(min(stage.num_prompts or prompts.rows, prompts.rows or stage.num_prompts or 0))
    prompt = min(prompts.prompt_tokens, stage.max_prompt_tokens)
    phases = [
        in_turns(answers(f"answers of {role.name}", role.name, count, stage, prompt), stage.environment)
        for role in roles
        if count
    ]
    for names in (stage.refusal_prompts, stage.benign_prompts):
        source = library.prompts(names, roles[0].vocab_size)
        rows, length = float(min(stage.num_prompts or source.rows, source.rows)), source.prompt_tokens
        read = min(length, stage.max_prompt_tokens)
        phases += [answers(f"answers of {role.name}", role.name, rows, stage, read) for role in roles if rows]
    compared = Corpus(rows=count * (len(roles) - 1), prompt_tokens=prompt, response_tokens=stage.expected_new_tokens)
    both = (compared, pairs)
    if stage.judge is not None:
        roles.append(models.answering("judge", stage.judge))
        given = (library.corpus(names, roles[0].vocab_size) for names in (stage.independent_pairs, stage.probes))
        judged = [pairs, *given]
        judged += [compared] if "judge_win_rate" in stage.suites else []
        lengths = [question_tokens(part, stage.judge_format, library) for part in judged]
        phases += [_read("judge", part, tokens, stage) for part, tokens in zip(judged, lengths, strict=True)]
        for index, name in enumerate(stage.also_judges):
            roles.append(models.answering(f"judge {index + 2}", name))
            phases.append(_read(f"judge {index + 2}", pairs, lengths[0], stage))
    scorers = [name for name in (stage.reward, *stage.also_rewards, stage.control_reward) if name is not None]
    for index, name in enumerate(dict.fromkeys(scorers)):
        roles.append(models.role(f"reward {index + 1}", name, scalar=True))
        parts = both if name in (stage.reward, stage.control_reward) else (pairs,)
        phases += [_read(f"reward {index + 1}", part, part.row_tokens, stage) for part in parts]
    if "perplexity" in stage.suites:
        phases.append(_read("policy", pairs, pairs.row_tokens, stage))
    phases = [phase for phase in phases if phase.steps]
    assume_length(library, stage)
    return Workload(
        **models.whereabouts(*roles),
        phases=tuple(phases),
        counters=Counters(
            tokens=sum(phase.tokens for phase in phases),
            generated_tokens=sum(phase.sequences * (phase.mean_new_tokens or phase.new_tokens) for phase in phases),
            records=count,
        ),
    )


def _read(role: str, pairs: Corpus, tokens: float, stage: EvalStage) -> RolePhase:
    """Two sequences per pair."""
    steps = ceil(2 * pairs.rows / stage.rollout_batch)
    return forward(f"{role} scores", role, steps, stage.rollout_batch, tokens, ragged=True)


def prepare(stage: PrepareStage, models: Models, library: Library) -> Workload:
    """Reading and writing text; no model takes part."""
    corpus = library.corpus(stage.data, models.any_vocabulary())
    num_bytes = corpus.rows * corpus.row_tokens * BYTES_PER_TOKEN_OF_TEXT
    return Workload(roles=(), phases=(), counters=Counters(records=corpus.rows), data_bytes=num_bytes)


# -------- The work of the stages that train: language models, preference models, judges, DPO and PPO.

RATING_TOKENS = 40
"""Of the wording around a rated answer: 158 characters (`feedback/comparing.py`) at about 4 to a token of English."""


def pretraining(stage: PretrainStage, models: Models, library: Library) -> Workload:
    """Texts one after the other, cut into sequences."""
    role, corpus = _learner(stage, models, library)
    return _language(stage, role, corpus.texts * corpus.row_tokens / stage.seq_len, float(stage.seq_len), ragged=False)


def fine_tuning(stage: SftStage, models: Models, library: Library) -> Workload:
    """One conversation per sequence."""
    role, corpus = _learner(stage, models, library)
    assume_padding(library)
    return _language(stage, role, corpus.texts, min(corpus.row_tokens, stage.seq_len), ragged=True)


def _learner(stage: PretrainStage | SftStage, models: Models, library: Library) -> tuple[Role, Corpus]:
    role = models.role("model", stage.init, trained=True, adapter=stage.adapter)
    return role, library.corpus(stage.data, role.vocab_size)


def _language(stage: PretrainStage | SftStage, role: Role, rows: float, tokens: float, *, ragged: bool) -> Workload:
    steps = training_steps(stage, ceil(rows))
    phase = train("model", steps=steps, batch=stage.global_batch, tokens=tokens, longest=stage.seq_len, ragged=ragged)
    return Workload(
        roles=(role,), phases=(phase,), counters=Counters(tokens=phase.sequences * tokens, records=phase.sequences)
    )


def preference_model(stage: PreferenceModelStage, models: Models, library: Library) -> Workload:
    """Two sequences per pair through a model with a scalar head."""
    role = models.role("model", stage.init, trained=True, adapter=stage.adapter, scalar=True)
    corpus = library.corpus(stage.data, role.vocab_size)
    tokens, steps = min(corpus.row_tokens, stage.seq_len), training_steps(stage, corpus.rows)
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
    read = min(corpus.response_tokens, tokens) if stage.format == "yes_no_mean" else 1.0
    phase = replace(
        train("model", steps=steps, batch=2 * stage.global_batch, tokens=tokens, longest=stage.seq_len, unit=2),
        masked_positions=read,
    )
    pairs = steps * stage.global_batch
    return Workload(roles=(role,), phases=(phase,), counters=Counters(tokens=phase.sequences * tokens, pairs=pairs))


def dpo(stage: DpoStage, models: Models, library: Library) -> Workload:
    """Both answers of every pair through the trained policy and the frozen reference, if there is one.

    By kto answers to other prompts are read first.
    """
    policy = models.role("policy", stage.init, trained=True, adapter=stage.adapter)
    corpus = library.corpus(stage.data, policy.vocab_size)
    tokens = min(corpus.row_tokens, stage.seq_len)
    steps, batch = training_steps(stage, corpus.rows), 2 * stage.global_batch
    assume_padding(library)
    longest, share = stage.seq_len, stage.ANSWER_SHARE if capabilities(stage.engine).logits_of_answers else 1.0
    update = train("policy", steps=steps, batch=batch, tokens=tokens, longest=longest, unit=2, logit_share=share)
    passes = {"reference log-probabilities": "reference"} if stage.has_reference else {}
    if stage.loss == "kto":
        passes |= {f"answers to other prompts by {role}": role for role in ("policy", "reference")}
    scores = [forward(one, role, steps, batch, update.prompt_tokens, logit_share=share) for one, role in passes.items()]
    return Workload(
        roles=(policy, *((models.role("reference", stage.init),) if stage.has_reference else ())),
        phases=(*scores, update),
        counters=Counters(tokens=update.sequences * tokens, pairs=steps * stage.global_batch),
        together=True,
    )


ASSUMED_CRITERIA = 16
"""Criteria of a rubric whose file a plan does not read: as many principles as Bai et al. 2022 use."""


def _ratings(
    stage: PpoStage, roles: Mapping[str, str], rollouts: int, longest: float, library: Library
) -> tuple[RolePhase, ...]:
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


def _rate(name: str, role: str, rollouts: int, questions: int, tokens: float) -> RolePhase:
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
    teacher = () if stage.teacher is None else (models.role("teacher", stage.teacher),)
    critic = (value,) if stage.has_value_model else ()
    judges = {
        name: models.answering(f"judge {number}" if number > 1 else stage.judge_role, name)
        for number, name in enumerate(stage.judges, start=1)
    }
    if stage.has_value_model:
        library.assume("ppo.value model", f"starts from the {origin}, same size", "charter.train.ppo")
    prompts = library.prompts(stage.prompts, policy.vocab_size)
    prompt, mean = float(stage.max_prompt_tokens), min(prompts.prompt_tokens, stage.max_prompt_tokens)
    read, longest = (prompt + stage.max_new_tokens + replies for replies in reply_tokens(stage.environment))
    library.assume(
        "ppo.prompt tokens",
        prompt,
        f"every prompt is padded to max_prompt_tokens; their mean is {prompts.prompt_tokens:.0f}, which engines that "
        "pack sequences read",
    )
    rollouts = ceil(stage.episodes / stage.rollout_batch)
    assume_length(library, stage)
    scored = (policy, *reference, *teacher, *reward)
    scoring = (
        *_scoring(stage, [role.name for role in scored], rollouts, read),
        *_ratings(stage, {name: role.name for name, role in judges.items()}, rollouts, read, library),
        *_scoring(stage, [role.name for role in critic], rollouts, read),
    )
    assume_rollouts(stage, library)
    training = [_updates(stage, one.name, rollouts, tokens=read, longest=longest) for one in (policy, *critic)]
    generation = replace(
        answers("generate", "policy", rollouts * stage.rollout_batch, stage, prompt, ragged=False),
        unpadded_tokens=mean,
        decode_batch=(stage.resources.decode_batch or 0) if stage.resources else 0,
        served=stage.generator == "vllm",
    )
    return Workload(
        **models.whereabouts(policy, *critic, *reference, *teacher, *reward, *judges.values(), may_choose=False),
        phases=(in_turns(generation, stage.environment), *scoring, *training),
        counters=Counters(
            tokens=training[0].tokens,
            generated_tokens=float(rollouts * stage.rollout_batch * stage.expected_new_tokens),
            episodes=float(rollouts * stage.rollout_batch),
        ),
        together=True,
        ahead=stage.ahead > 0,
        records=rollout_records(stage, prompt_tokens=mean, vocab_size=policy.vocab_size),
    )


def _scoring(stage: PpoStage, roles: Iterable[str], rollouts: int, read: float) -> Iterator[RolePhase]:
    """Yield each role's pass over all rollouts, less what the update computes; logits are made of answers alone."""
    computed = capabilities(stage.engine).read_by_update(stage)
    for role in roles:
        share, rows = stage.max_new_tokens / read, stage.rollout_batch - (computed if role == "policy" else 0)
        if role == "teacher" and stage.divergence is not None:
            rows *= 1 + stage.ppo_epochs  # and its words, in every epoch
        if rows > 0:
            yield forward(f"score {role}", role, rollouts, rows, read, logit_share=share)


def _updates(stage: PpoStage, role: str, rollouts: int, *, tokens: float, longest: float) -> RolePhase:
    steps = rollouts * ceil(stage.rollout_batch / stage.minibatch) * stage.ppo_epochs
    batch, share = min(stage.minibatch, stage.rollout_batch), stage.max_new_tokens / tokens
    update = train(role, steps=steps, batch=batch, tokens=tokens, longest=longest, ragged=False, unit=stage.unit)
    return replace(update, logit_share=share, entropy=stage.entropy_weight > 0)


def workload(stage: Stage, models: Models, library: Library) -> Workload:
    """Roles, phases and counters of one stage."""
    return WORK[type(stage)](stage, models, library)


WORK: Mapping[type[Stage], Callable[[Any, Models, Library], Workload]] = {
    PretrainStage: pretraining,
    SftStage: fine_tuning,
    PreferenceModelStage: preference_model,
    JudgeStage: judge,
    DpoStage: dpo,
    PpoStage: ppo,
    CritiqueStage: critique,
    LabelStage: label,
    GenerateStage: generate,
    EvalStage: evaluate,
    PrepareStage: prepare,
}
