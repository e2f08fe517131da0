"""Agreement of judges with humans, with each other, and with themselves: the suites `judge_agreement` and `probes`."""

import math
from collections import Counter
from collections.abc import Sequence

from charter.artifacts.draws import draw_seed
from charter.data.dataset import Pair
from charter.evaluate import statistics
from charter.evaluate.accuracy import HELD_OUT, shorter_wins
from charter.evaluate.bench import Bench
from charter.evaluate.figures import Figure, difference, figure_of, mean, proportion, resampled
from charter.evaluate.judging import ONE_HALF, Contest, JudgedItem, first_option_share, invalid_note, verdict_wins
from charter.feedback.asking import LARGEST_LOG_ODDS, probability_of
from charter.feedback.inputs import role_pairs
from charter.feedback.wording import MULTIPLE_CHOICE

KAPPA = "kappa"
MIN_OF_PRINCIPLE = 5
"""Pairs below which a principle gets no figure: its interval would span most of what is possible."""


def judge_agreement(bench: Bench) -> list[Figure]:
    """Return how often each judge prefers the choice of humans, and how often the judges choose alike."""
    contests = contests_of(bench.pairs)
    by_judge = {name: bench.judging.verdicts(contests, role=role) for name, role in bench.judging.roles.items()}
    name, *others = by_judge
    figures = _judge(bench, by_judge[name])
    for other in others:
        label = f"Judge {other} agrees with the human label"
        figures.append(_with_humans(f"also.{other}", label, by_judge[other], bench))
        figures += _between(bench, name, by_judge[name], other, by_judge[other])
    return figures


def probes(bench: Bench) -> list[Figure]:
    """Compare the judge's answers to fixed pairs with those of the day when their `chosen_probability` was written."""
    pairs = role_pairs(bench.job, "probes")
    judged = bench.judging.verdicts(contests_of(pairs))
    before = [pairs[item.place].chosen_probability for item in judged]
    now = [item.verdict.probability_first for item in judged]
    same = [float(statistics.choice_of(a) == statistics.choice_of(b)) for a, b in zip(before, now, strict=True)]
    moved = [abs(a - b) for a, b in zip(before, now, strict=True)]
    note = invalid_note(len(pairs), len(judged))
    figures = [
        proportion("probes.same_verdict", "Judge decides the probes as before", same, note=note),
        mean("probes.moved", "Mean change of the judge's probability", moved, unit="probability", note=note),
    ]
    if all(value in (0.0, 1.0) for value in before):
        return figures  # hard labels: what the judge's probabilities were is not known
    distance, band = statistics.ks_distance(_log_odds(now), _log_odds(before))
    label = "Largest difference of the distributions of log-odds"
    method = "Kolmogorov-Smirnov band"
    return [*figures, figure_of("probes.ks", label, distance, band, len(now), "distance", method, note)]


def contests_of(pairs: Sequence[Pair]) -> list[Contest]:
    """Pairs as contests, the chosen answer first: both orders are asked, so the judge cannot tell."""
    return [Contest(id=pair.id, turns=pair.prompt, first=pair.chosen, second=pair.rejected) for pair in pairs]


def _judge(bench: Bench, judged: Sequence[JudgedItem]) -> list[Figure]:
    """The figures of the judge itself."""
    wins, shorter = verdict_wins(judged), shorter_wins([bench.pairs[item.place] for item in judged])
    seed = bench.seed("judge_agreement")
    figures = [
        _with_humans("judge", "Judge agrees with the human label", judged, bench),
        proportion("judge_agreement.shorter_answer", "Baseline: the shorter answer wins", shorter, note=HELD_OUT),
        difference("judge_agreement.over_shorter", "Judge less the shorter-answer baseline", wins, shorter, seed=seed),
    ]
    if bench.has("independent_pairs"):
        others = contests_of(bench.independent_pairs)
        more = wins + verdict_wins(bench.judging.verdicts(others))
        label, note = "Judge agrees, independent pairs too", "held-out and independent pairs; the judge saw neither"
        figures.append(proportion("judge_agreement.all_unseen", label, more, note=note))
    figures += _by_principle(judged)
    if bench.spec.judge_format == MULTIPLE_CHOICE:
        agree = [float(item.verdict.orders_agree) for item in judged]
        figures.append(proportion("judge_agreement.orders_agree", "Same verdict in both orders", agree))
        bias = [first_option_share(item.verdict) for item in judged]
        figures.append(proportion("judge_agreement.first_option", "Option (A) preferred", bias, note=ONE_HALF))
    return figures


def _with_humans(key: str, label: str, judged: Sequence[JudgedItem], bench: Bench) -> Figure:
    parts = (HELD_OUT, invalid_note(len(bench.pairs), len(judged)))
    return proportion(
        f"judge_agreement.{key}", label, verdict_wins(judged), note="; ".join(part for part in parts if part)
    )


def _by_principle(judged: Sequence[JudgedItem]) -> list[Figure]:
    """Agreement with humans under each principle that was drawn often enough, where more than one was drawn."""
    drawn = Counter(item.principle for item in judged)
    names = sorted(name for name, count in drawn.items() if count >= MIN_OF_PRINCIPLE)
    wins = {name: verdict_wins([item for item in judged if item.principle == name]) for name in names}
    return [
        proportion(f"judge_agreement.principle.{name}", f"Judge agrees under the principle {name}", wins[name])
        for name in (names if len(drawn) > 1 else ())
    ]


def _between(
    bench: Bench, name: str, mine: Sequence[JudgedItem], other: str, theirs: Sequence[JudgedItem]
) -> list[Figure]:
    """Agreement of two judges on the pairs on which both have a verdict.

    Which answer counts as the first one is drawn by the pair's id: were it always the chosen one, two good judges
    would choose alike by that alone, and kappa would be 0 for them.
    """
    verdicts = {item.place: item.verdict.probability_first for item in theirs}
    rows = [(item.place, item.verdict.probability_first) for item in mine if item.place in verdicts]
    turned = [draw_seed(bench.seed("orientation"), bench.pairs[place].id) % 2 == 1 for place, _ in rows]
    ours = [statistics.choice_of(1 - p if turn else p) for (_, p), turn in zip(rows, turned, strict=True)]
    others = [
        statistics.choice_of(1 - verdicts[place] if turn else verdicts[place])
        for (place, _), turn in zip(rows, turned, strict=True)
    ]
    alike = [float(a == b) for a, b in zip(ours, others, strict=True)]
    key, note = f"judge_agreement.with.{other}", f"judges {name} and {other}"
    return [
        proportion(f"{key}.share", f"Same choice as judge {other}", alike, note=note),
        *resampled(
            f"{key}.kappa",
            f"Agreement with judge {other} beyond chance",
            statistics.kappa,
            statistics.cells(ours, others),
            seed=bench.seed("judge_agreement", other),
            unit=KAPPA,
            note=note,
        ),
    ]


def _log_odds(probabilities: Sequence[float]) -> list[float]:
    """Probabilities as log-odds, on the scale that judges answer on."""
    least = probability_of(-LARGEST_LOG_ODDS)
    clipped = [min(max(value, least), 1 - 2**-53) for value in probabilities]
    return [math.log(value / (1 - value)) for value in clipped]
