"""Suites on what the policies write: wins by the reward, and a check that the reward had no part in."""

from collections.abc import Sequence

from charter.evaluate.bench import Bench
from charter.evaluate.figures import Figure, difference, mean, proportion

REWARD_UNIT = "deviations"


def win_rate(bench: Bench) -> list[Figure]:
    """Policy against the model it started from, by its own reward; and how far it moved."""
    base = bench.rewards("against")
    note = "by the model that rewarded it; a control on shuffled labels rises too"
    found = [mean("win_rate.reward_against", "Mean reward before", base, unit=REWARD_UNIT)]
    for role in ("policy", "control"):
        if not bench.has(role):
            continue
        mine = bench.rewards(role)
        wins = [0.5 if a == b else float(a > b) for a, b in zip(mine, base, strict=True)]
        seed = bench.seed("win_rate", role)
        gain = f"Reward gained by {role}"
        found += [
            proportion(f"win_rate.{role}", f"Answers of {role} that score above those of against", wins, note=note),
            mean(f"win_rate.reward_{role}", f"Mean reward of {role}", mine, unit=REWARD_UNIT),
            difference(f"win_rate.gain_{role}", gain, mine, base, seed=seed, unit=REWARD_UNIT),
            _divergence(bench, role),
        ]
    return found


def _divergence(bench: Bench, role: str) -> Figure:
    """KL of a model against `against`, over its own answers."""
    note = "sum over tokens of the divergence of the distributions sampled from"
    note += "; top_p is left out of them" if bench.spec.top_p < 1 else ""
    values = bench.divergences(role, "against")
    return mean(f"win_rate.kl_{role}", f"KL of {role} against the model before", values, unit="nats/answer", note=note)


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
    found = []
    if bench.has("pairs"):
        wins = bench.proxy.wins([pair.chosen for pair in bench.pairs], [pair.rejected for pair in bench.pairs])
        trained = f"trained on {len(bench.independent_pairs)} independent human pairs"
        found.append(proportion("independent_check.proxy", "The check itself on held-out pairs", wins, note=trained))
    if not rows[0]:
        return found
    outcome = {role: bench.proxy.wins(texts[role], texts["against"]) for role in roles if role != "against"}
    for role, wins in outcome.items():
        label = f"Answers of {role} that the check prefers to those of against"
        found.append(proportion(f"independent_check.{role}", label, wins, note=note))
    if "control" in outcome:
        label, seed = "Policy less control", bench.seed("independent_check")
        key = "independent_check.difference"
        found.append(difference(key, label, outcome["policy"], outcome["control"], seed=seed, note=note))
    return found


def equal_length_rows(
    answers: Sequence[Sequence[Sequence[int]]],
) -> tuple[list[list[Sequence[int]]], int, float]:
    """Answers of several models cut, prompt by prompt, to the shortest one; prompts with an empty answer left out.

    Returns the rows by model, how many prompts were left out, and the mean length kept.

    >>> equal_length_rows([[[1, 2, 3], [4]], [[5, 6], []]])
    ([[[1, 2]], [[5, 6]]], 1, 2.0)
    """
    shortest = [min(len(row) for row in rows) for rows in zip(*answers, strict=True)]
    kept = [index for index, length in enumerate(shortest) if length]
    cut = [[rows[index][: shortest[index]] for index in kept] for rows in answers]
    mean_length = sum(shortest[index] for index in kept) / len(kept) if kept else 0.0
    return cut, len(shortest) - len(kept), mean_length
