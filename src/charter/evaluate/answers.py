"""Suites on what the policies write: wins by the reward, and a check that the reward had no part in."""

from collections.abc import Sequence

from charter.evaluate.bench import Bench
from charter.evaluate.figures import Figure, difference, mean, proportion
from charter.evaluate.statistics import win_of

REWARD_UNIT = "deviations"


def win_rate(bench: Bench) -> list[Figure]:
    """Policy and control against the model they started from, by the policy's reward; and how far they moved."""
    base = bench.rewards("against")
    figures = [mean("win_rate.reward_against", "Reward of the model before", base, unit=REWARD_UNIT)]
    for role in ("policy", "control"):
        if not bench.has(role):
            continue
        mine = bench.rewards(role)
        label, gain = f"{role.title()} preferred to the model before, by the reward", f"Reward gained by the {role}"
        seed = bench.seed("win_rate", role)
        figures += [
            mean(f"win_rate.reward_{role}", f"Reward of the {role}", mine, unit=REWARD_UNIT),
            difference(f"win_rate.gain_{role}", gain, mine, base, seed=seed, unit=REWARD_UNIT),
            proportion(f"win_rate.{role}", label, _wins(mine, base), note="by the model that rewarded the policy"),
            _divergence(bench, role),
        ]
    return figures + (_control_by_its_own_reward(bench) if bench.has("control_reward") else [])


def _control_by_its_own_reward(bench: Bench) -> list[Figure]:
    """The control by the model that rewarded it: what a reward without signal rises to."""
    mine, base = (bench.rewards(role, scorer_role="control_reward") for role in ("control", "against"))
    label = "Control preferred to the model before, by its own reward"
    return [proportion("win_rate.control_own", label, _wins(mine, base), note="its reward learnt shuffled labels")]


def _wins(mine: Sequence[float], base: Sequence[float]) -> list[float]:
    return [win_of(a, b) for a, b in zip(mine, base, strict=True)]


def _divergence(bench: Bench, role: str) -> Figure:
    """KL of a model against `against`, over its own answers."""
    note = "sum over tokens of the divergence of the distributions sampled from"
    note += "; top_p is left out of them" if bench.spec.top_p < 1 else ""
    values = bench.divergences(role, "against")
    return mean(f"win_rate.kl_{role}", f"KL of the {role} from the model before", values, unit="nats/answer", note=note)


def independent_check(bench: Bench) -> list[Figure]:
    """Wins over the model before, at equal length, by a bag of words trained on pairs that no other stage used.

    For each prompt all answers are cut to the shortest one's tokens, so that length cannot decide.
    """
    roles = [role for role in ("policy", "control", "against") if bench.has(role)]
    rows, skipped, length = equal_length_rows([bench.answers(role).tokens for role in roles])
    note = f"all answers to a prompt cut to the shortest one's tokens, {length:.1f} on average"
    note += f"; {skipped} prompts left out, where an answer was empty" if skipped else ""
    texts = {
        role: [str(bench.model(role).tokenizer.decode(row, skip_special_tokens=True)) for row in cut]
        for role, cut in zip(roles, rows, strict=True)
    }
    figures = []
    if bench.has("pairs"):
        wins = bench.proxy.wins([pair.chosen for pair in bench.pairs], [pair.rejected for pair in bench.pairs])
        trained = f"trained on {len(bench.independent_pairs)} independent human pairs"
        figures.append(
            proportion("independent_check.proxy", "The check itself, on held-out human pairs", wins, note=trained)
        )
    if not rows[0]:
        return figures
    outcome = {role: bench.proxy.wins(texts[role], texts["against"]) for role in roles if role != "against"}
    for role, wins in outcome.items():
        label = f"{role.title()} preferred to the model before, by the check"
        figures.append(proportion(f"independent_check.{role}", label, wins, note=note))
    if "control" in outcome:
        label, seed = "Win rate of the policy less that of the control, by the check", bench.seed("independent_check")
        key = "independent_check.difference"
        figures.append(difference(key, label, outcome["policy"], outcome["control"], seed=seed, note=note))
    return figures


def equal_length_rows(
    answers: Sequence[Sequence[Sequence[int]]],
) -> tuple[list[list[Sequence[int]]], int, float]:
    """Answers of several models cut, prompt by prompt, to the shortest one; prompts with an empty answer left out.

    Returns the rows by model, how many prompts were left out, and the mean length kept.

    >>> equal_length_rows([[[1, 2, 3], [4]], [[5, 6], []]])
    ([[[1, 2]], [[5, 6]]], 1, 2.0)
    """
    shortest = [min(len(row) for row in rows) for rows in zip(*answers, strict=True)]
    answered = [index for index, length in enumerate(shortest) if length]
    cut = [[rows[index][: shortest[index]] for index in answered] for rows in answers]
    mean_length = sum(shortest[index] for index in answered) / len(answered) if answered else 0.0
    return cut, len(shortest) - len(answered), mean_length
