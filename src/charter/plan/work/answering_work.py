"""The work of the stages that write or read text without training: critique, label, generate, eval, prepare."""

from math import ceil

from charter.plan.work.corpus import NOTHING, Corpus, Library
from charter.plan.work.phase import Asked, Counters, Phase, Role, Workload
from charter.plan.work.phase_kinds import (
    BYTES_PER_TOKEN_OF_TEXT,
    PRINCIPLE_TOKENS,
    answers,
    assume_length,
    assume_question,
    forward,
    in_turns,
    question_tokens,
    questions_per_pair,
)
from charter.plan.work.roles import Models
from charter.spec.stage import CritiqueStage, EvalStage, GenerateStage, LabelStage, PrepareStage


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
    roles: tuple[Role | Asked, ...] = (judge,)
    phases: tuple[Phase, ...] = ()
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


def _reasoning(question: Phase, stage: LabelStage, sequences: float) -> Phase:
    """The judge's reasons before one kind of question."""
    tokens = question.prompt_tokens - stage.reasoning_tokens
    return Phase(
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
    prompt = min(read, float(stage.max_prompt_tokens))
    assume_length(library, stage)
    phase = answers("generate", "policy", count, stage, prompt)
    return Workload(
        **models.whereabouts(policy),
        phases=(phase,),
        counters=Counters(generated_tokens=count * stage.expected_new_tokens, records=count),
        data_bytes=phase.tokens * BYTES_PER_TOKEN_OF_TEXT,
    )


def evaluate(stage: EvalStage, models: Models, library: Library) -> Workload:
    """Answers of every policy, and what judge and preference models make of them and of held-out pairs."""
    writers = [("policy", stage.policy), ("against", stage.against), ("control", stage.control)]
    roles: list[Role | Asked] = [models.role(role, name) for role, name in writers if name is not None]
    prompts = library.prompts(stage.prompts, roles[0].vocab_size)
    pairs = library.corpus(stage.pairs, roles[0].vocab_size)
    count = float(min(stage.num_prompts or prompts.rows, prompts.rows or stage.num_prompts or 0))
    prompt = min(prompts.prompt_tokens, stage.max_prompt_tokens)
    phases = [
        in_turns(answers(f"answers of {role.name}", role.name, count, stage, prompt), stage.environment, library)
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


def _read(role: str, pairs: Corpus, tokens: float, stage: EvalStage) -> Phase:
    """Two sequences per pair."""
    steps = ceil(2 * pairs.rows / stage.rollout_batch)
    return forward(f"{role} scores", role, steps, stage.rollout_batch, tokens, ragged=True)


def prepare(stage: PrepareStage, models: Models, library: Library) -> Workload:
    """Reading and writing text; no model takes part."""
    corpus = library.corpus(stage.data, models.any_vocabulary())
    num_bytes = corpus.rows * corpus.row_tokens * BYTES_PER_TOKEN_OF_TEXT
    return Workload(roles=(), phases=(), counters=Counters(records=corpus.rows), data_bytes=num_bytes)
