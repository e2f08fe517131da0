"""Names of measured quantities beside those of `docs/reference/measurements.md`: what they measure, and their unit."""

import re

from charter.physics.runs import GRPO, PPO, Algorithm, algorithm_named
from charter.units import GB, GIB, MIB
from charter.validation.rows.measurement import Measurement, kind_of

_PER_SECOND = r"per_(?:s|sec|second)"
_OF_ONE = r"per_(?:gpu|device|chip|accelerator|card|npu)"
_RATE = re.compile(
    rf"(?P<what>tokens|samples|sequences|seqs|examples|requests|steps|iterations|iters|it)_"
    rf"(?:(?P<one>{_OF_ONE})_)?{_PER_SECOND}(?:_(?P<after>{_OF_ONE})|_total)?"
)
_STEP = re.compile(r"(?:step|iteration|iter)_(?:time|latency)(?:_\w+)?|(?:s|ms|seconds)_per_(?:it|iter|iteration|step)")
WRITTEN_METRICS = (
    "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "out_tokens_per_s", "peak_mem_gib", "peak_mem_gb", "oom",
)  # fmt: skip
"""Names that people write most, for a hint beside one that nothing predicts."""
_RUN: tuple[tuple[str, str, float], ...] = (
    (r"(gpu|tpu|chip|device|accelerator|npu|card)_hours", "gpu_hours", 1.0),
    (r"(gpu|tpu|chip|device|accelerator|npu|card)_days", "gpu_hours", 1 / 24),
    (r"(wall|train(ing)?|run|total)(_(time|clock))?_(hours?|h)", "wall_hours", 1.0),
    (r"(wall|train(ing)?|run|total)(_(time|clock))?_(days?|d)", "wall_days", 1.0),
    (r"(wall|train(ing)?|run|total)(_(time|clock))?_(minutes|min|m)", "wall_hours", 60.0),
    (r"(wall|train(ing)?|run|total)(_(time|clock))?_(seconds|sec|s)", "wall_hours", 3600.0),
    (r"(cost|price)(_(usd|dollars))?", "cost_usd", 1.0),
)
_PHASES: tuple[tuple[str, str], ...] = (
    (r"step|iteration|total|e2e|end_to_end", "step"),
    (r"sync|refit|reshard|transfer", "weight sync"),
    (r"generat|rollout|sampl", "generate"),
    (r"score|log_?prob|reward|ref_|reference|experience|infer|value", "score"),
    (r"train|update|learn|backward|optim", "update"),
    (r"other", "other"),
)
_ROLES: tuple[tuple[str, str], ...] = (
    (r"(^|_)ref(erence)?(_|$)", "reference"),
    (r"reward|(^|_)rm(_|$)", "reward"),
    (r"critic|value", "value"),
    (r"(^|_)old_|actor|policy", "policy"),
)
"""The model that scores or learns, by the first pattern in a phase's name."""


def in_milliseconds(row: Measurement) -> bool:
    """Return True if a time is printed in milliseconds, by metric or unit.

    >>> in_milliseconds(Measurement(id="X-1", metric="step_time_ms", value=1.0))
    True
    """
    return "ms" in row.metric.split("_") or bool(re.match(r"(ms|milliseconds?)\b", row.unit.strip()))


def unit_bytes(row: Measurement, stack: str) -> float:
    """Bytes of the row's unit: GiB and MiB, which tools print as GB and MB; litgpt divides by 1e9 and says GB."""
    if row.metric.endswith("_mb") or "mib" in row.metric.split("_"):
        return MIB
    decimal = re.search(r"1e9|10\^9|decimal", f"{row.unit} {row.notes}".lower())
    if (stack == "litgpt" or decimal) and "gib" not in row.metric:
        return GB
    return GIB


def training_metric(row: Measurement) -> str | None:
    """`step`, or the thing that a rate counts with `per gpu` where it is of one accelerator; None for anything else.

    >>> [training_metric(Measurement(id="X-1", metric=name, value=1.0)) for name in
    ...  ("step_time_s", "tokens_per_s_total", "samples_per_s_per_gpu", "tokens_per_gpu_per_s", "ttft_ms")]
    ['step', 'tokens', 'samples per gpu', 'tokens per gpu', None]
    """
    if _STEP.fullmatch(row.metric):
        return "step"
    match = _RATE.fullmatch(row.metric)
    if not match or match["what"] == "requests":
        return None
    unit = row.unit.casefold()
    bare_of_one = "_total" not in row.metric and re.search(r"/\s*(gpu|device|chip|card|s/gpu)", unit)
    what = "tokens" if match["what"] == "tokens" else "steps" if match["what"][:2] in ("st", "it") else "samples"
    return f"{what} per gpu" if match["one"] or match["after"] or bare_of_one else what


def run_metric(row: Measurement) -> tuple[str, float] | None:
    """The total of a run that a metric names, and from its unit to the metric's.

    >>> run_metric(Measurement(id="X-1", metric="training_time_min", value=1.0))
    ('wall_hours', 60.0)
    """
    return next(((name, scale) for words, name, scale in _RUN if re.fullmatch(words, row.metric)), None)


def rl_metric(row: Measurement) -> str | None:
    """The phase of a step that a time measured, or `tokens`, `answers`, `samples` for rates; None for anything else.

    >>> [rl_metric(Measurement(id="X-1", metric=name, value=1.0)) for name in
    ...  ("step_time_s", "ppo_generate_time_s", "ppo_actor_train_time_s", "out_tokens_per_s", "peak_mem_gb")]
    ['step', 'generate', 'update', 'answers', None]
    """
    if re.search(r"_time(_|$)|_(s|ms)$", row.metric) and "_per_" not in row.metric and run_metric(row) is None:
        return next((phase for words, phase in _PHASES if re.search(words, row.metric)), None)
    if re.fullmatch(rf"(out|output|generated)_tokens_{_PER_SECOND}\w*", row.metric):
        return "answers"
    if re.fullmatch(rf"total_tokens_{_PER_SECOND}\w*", row.metric):
        return "tokens"
    counted = training_metric(row)
    return None if counted is None or "steps" in counted else counted.removesuffix(" per gpu")


def role_of_phase(row: Measurement) -> str | None:
    """Return the model whose scoring or update a time measured, where it is that of one; None for all of them.

    >>> [role_of_phase(Measurement(id="X-1", metric=f"ppo_{name}_time_s", value=1.0)) for name in
    ...  ("ref_logprob", "old_logprob", "values", "reward", "update_critic", "update_actor", "train", "generate")]
    ['reference', 'policy', 'value', 'reward', 'value', 'policy', None, None]
    """
    if rl_metric(row) not in ("score", "update"):
        return None
    return next((role for words, role in _ROLES if re.search(words, row.metric)), None)


_REFERENCE = r"\b(dpo|ipo|kto)(?:\b|trainer)"
_PAIRS = r"\b(dpo|orpo|simpo|ipo|cpo)(?:\b|trainer)"


def algorithm_of(row: Measurement) -> Algorithm:
    """The algorithm that a row of reinforcement learning names, else GRPO where it has no critic or groups of answers.

    >>> algorithm_of(Measurement(id="X-1", metric="step_time_s", value=1.0, kind="grpo")).name
    'GRPO'
    """
    named = algorithm_named(row.notes, row.framework, row.model)
    return named or (GRPO if row.critic_params_b == 0 or (row.n_generations or 1) > 1 else PPO)


def compares_pairs(row: Measurement) -> bool:
    """Return True if fine-tuning reads two answers per sample (DPO and its relatives), by its notes or names.

    >>> compares_pairs(Measurement(id="X-1", metric="step_time_s", value=1.0, kind="sft", framework="TRL DPOTrainer"))
    True
    >>> compares_pairs(Measurement(id="X-1", metric="step_time_s", value=1.0, kind="dpo"))
    True
    """
    return row.kind in ("sft", "lora") and bool(re.search(_PAIRS, _words(row)))


def printed_kind(row: Measurement) -> str:
    """The kind of a row with the algorithm that its text names, in one word where a table has one for both.

    >>> printed_kind(Measurement(id="X-1", metric="step_time_s", value=1.0, kind="grpo"))
    'grpo'
    >>> printed_kind(Measurement(id="X-1", metric="step_time_s", value=1.0, kind="lora", framework="TRL", notes="DPO"))
    'lora+dpo'
    """
    if row.kind == "ppo":
        word = algorithm_of(row).name.casefold().rstrip("+")
    else:
        pairs = re.search(_PAIRS, _words(row)) if row.kind in ("sft", "lora") else None
        word = pairs[1] if pairs else row.kind
    return word if kind_of(word) == row.kind else f"{row.kind}+{word}"


def needs_reference(row: Measurement) -> bool:
    """Return True if a frozen copy scores the answers of fine-tuning too: in DPO, IPO and KTO, not in ORPO and SimPO.

    >>> [needs_reference(Measurement(id="X-1", metric="peak_mem_gib", value=1.0, kind=kind)) for kind in
    ...  ("dpo", "kto", "orpo", "sft")]
    [True, True, False, False]
    """
    return row.kind in ("sft", "lora") and bool(re.search(_REFERENCE, _words(row)))


def _words(row: Measurement) -> str:
    return f"{row.framework} {row.notes} {row.model}".casefold()
