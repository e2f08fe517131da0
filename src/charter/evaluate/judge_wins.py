"""The suite `judge_win_rate`: policy and control against the model before, by the judge, in both orders."""

from collections.abc import Sequence

from charter.evaluate.bench import Bench
from charter.evaluate.figures import SHARE, Figure, difference, figure_of, mean, proportion
from charter.evaluate.judging import ONE_HALF, Contest, JudgedItem, first_option_share, invalid_note, verdict_wins
from charter.evaluate.statistics import length_controlled
from charter.feedback.wording import MULTIPLE_CHOICE

KEY = "judge_win_rate"


def judge_win_rate(bench: Bench) -> list[Figure]:
    """Wins of what was trained, raw and at equal length, with what is known of the judge's own biases."""
    roles = [role for role in ("policy", "control") if bench.has(role)]
    judged = {role: bench.judging.verdicts(_contests(bench, role)) for role in roles}
    figures = [figure for role in roles for figure in _wins(bench, role, judged[role])]
    if "control" in judged:
        figures += _policy_less_control(bench, judged["policy"], judged["control"])
    return figures + _biases(bench, [item for part in judged.values() for item in part])


def _contests(bench: Bench, role: str) -> list[Contest]:
    """The role's answer first; draws are the same whichever role it is, so that roles can be compared."""
    rows = zip(bench.prompts, bench.answers(role).texts, bench.answers("against").texts, strict=True)
    return [Contest(id=prompt.id, turns=prompt.turns, first=mine, second=theirs) for prompt, mine, theirs in rows]


def _wins(bench: Bench, role: str, judged: Sequence[JudgedItem]) -> list[Figure]:
    name, note = role.title(), invalid_note(len(bench.prompts), len(judged))
    mean_label = f"Judge's mean probability for the {role}"
    preferences = [item.verdict.probability_first for item in judged]
    mine = [len(bench.answers(role).tokens[item.place]) for item in judged]
    theirs = [len(bench.answers("against").tokens[item.place]) for item in judged]
    longer = [float(a - b) for a, b in zip(mine, theirs, strict=True)]
    label = f"{name} preferred to the model before"
    figures = [
        proportion(f"{KEY}.{role}", f"{label}, by the judge", verdict_wins(judged), note=note),
        mean(f"{KEY}.{role}_preference", mean_label, preferences, unit=SHARE, note=note),
        mean(f"{KEY}.{role}_longer", f"Tokens by which the {role} answers longer", longer, unit="tokens"),
    ]
    control = length_controlled(preferences, mine, theirs)
    method = "logistic regression, robust"
    at_equal = figure_of(
        f"{KEY}.{role}_length_controlled",
        f"{label}, by the judge, at equal length",
        control.win_rate,
        control.interval,
        len(judged),
        SHARE,
        method,
        "the judge's probabilities as if both answers had the same length",
    )
    weight = figure_of(
        f"{KEY}.{role}_length_weight",
        "Weight of length in the judge's preference",
        control.weight,
        control.weight_interval,
        len(judged),
        "log-odds",
        method,
        "for an answer longer by much; below 0 the judge prefers short answers",
    )
    return [*figures, at_equal, weight]


def _policy_less_control(bench: Bench, policy: Sequence[JudgedItem], control: Sequence[JudgedItem]) -> list[Figure]:
    """On the prompts on which both have a verdict."""
    wins = [dict(zip((item.place for item in part), verdict_wins(part), strict=True)) for part in (policy, control)]
    both = [place for place in wins[0] if place in wins[1]]
    if not both:
        return []
    mine, theirs = ([part[place] for place in both] for part in wins)
    label, seed = "Win rate of the policy less that of the control, by the judge", bench.seed(KEY)
    return [difference(f"{KEY}.difference", label, mine, theirs, seed=seed)]


def _biases(bench: Bench, judged: Sequence[JudgedItem]) -> list[Figure]:
    """Return the effect of the order of the answers; nothing in formats without an order."""
    if bench.spec.judge_format != MULTIPLE_CHOICE:
        return []
    agree = [float(item.verdict.orders_agree) for item in judged]
    first = [first_option_share(item.verdict) for item in judged]
    return [
        proportion(f"{KEY}.orders_agree", "Same verdict in both orders", agree),
        proportion(f"{KEY}.first_option", "Option (A) preferred", first, note=ONE_HALF),
    ]
