"""Preference pairs as rows of an engine that knows hard labels only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from charter.data.dataset import Pair, Turn, read_pairs
from charter.engines.common.adapter import messages
from charter.errors import DataError
from charter.inference.score import encode_scored
from charter.spec.stage import DpoStage, PreferenceModelStage
from charter.train.dpo import encode_pair
from charter.train.preference_model import stage_pairs
from charter.train.setup import Setup


@dataclass(frozen=True, kw_only=True)
class PairRows:
    """Rows of pairs with the tokens of both answers."""

    rows: Sequence[dict[str, Any]]
    tokens: Sequence[int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Reads:
    """Settings by which a preference model reads an answer."""

    tokenizer: Any
    settings: dict[str, Any]


def reward_rows(setup: Setup, tokenizer: Any, spec: PreferenceModelStage) -> PairRows:
    """`chosen_ids` and `rejected_ids`, tokenised and cut as the native engine reads them; `margin` where it counts."""
    reads = _Reads(tokenizer, {"context": spec.context, "seq_len": spec.seq_len})
    pairs = hard(stage_pairs(setup, spec))
    rows: list[dict[str, Any]] = []
    tokens = []
    for pair in pairs:
        chosen, rejected = (
            encode_scored(reads, pair.prompt, answer, max_tokens=spec.seq_len)[0]
            for answer in (pair.chosen, pair.rejected)
        )
        margin = {"margin": pair.margin} if spec.use_margin else {}
        rows.append({"chosen_ids": chosen, "rejected_ids": rejected, **margin})
        tokens.append(len(chosen) + len(rejected))
    _check_ends([row[name][-1] for row in rows for name in ("chosen_ids", "rejected_ids")], tokenizer)
    return PairRows(rows=rows, tokens=tokens)


def dpo_rows(setup: Setup, tokenizer: Any, spec: DpoStage | PreferenceModelStage) -> PairRows:
    """`prompt`, `chosen` and `rejected` as messages, which the engine tokenises itself."""
    pairs = hard(stage_pairs(setup, spec) if isinstance(spec, PreferenceModelStage) else setup.rows("data", read_pairs))
    rows, tokens, cut = [], [], 0
    for pair in pairs:
        rows.append(
            {
                "prompt": messages(pair.prompt),
                "chosen": messages([Turn("assistant", pair.chosen)]),
                "rejected": messages([Turn("assistant", pair.rejected)]),
            }
        )
        encoded = encode_pair(tokenizer, pair, max_tokens=1 << 30)
        lengths = [len(encoded.prompt) + len(answer) for answer in (encoded.chosen, encoded.rejected)]
        cut += max(lengths) > spec.seq_len
        tokens.append(sum(min(length, spec.seq_len) for length in lengths))
    note = (
        f"{cut} of {len(pairs)} pairs are longer than seq_len {spec.seq_len}: the engine cuts them by its own rule, "
        "where the native engine keeps at most 3/4 of it for an answer and cuts the prompt at the left"
    )
    return PairRows(rows=rows, tokens=tokens, notes=(note,) if cut else ())


def hard(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs with the better answer first; soft labels are refused, since they would have to be rounded."""
    soft = sum(pair.chosen_probability not in (0.0, 1.0) for pair in pairs)
    if soft:
        raise DataError(
            f"{soft} of {len(pairs)} pairs have soft labels (`chosen_probability` between 0 and 1), and this engine "
            "knows hard ones only\n  compute the stage with `engine: native`, which trains on them as they are, or "
            "give it data with hard labels"
        )
    return [
        pair
        if pair.chosen_probability
        else replace(pair, chosen=pair.rejected, rejected=pair.chosen, chosen_probability=1.0, margin=-pair.margin)
        for pair in pairs
    ]


def _check_ends(ends: Sequence[int], tokenizer: Any) -> None:
    """Refuse rows that end in padding: the engine's score is read at the last token that is none."""
    wrong = sum(end == tokenizer.pad_token_id for end in ends)
    if wrong:
        raise DataError(
            f"{wrong} of {len(ends)} answers end in {tokenizer.pad_token!r}, which this tokenizer also pads with; the "
            "engine would read their scores one token earlier than Charter does\n  give the tokenizer of the model a "
            "padding token of its own, or compute the stage with `engine: native`"
        )
