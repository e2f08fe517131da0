"""Answers of a rollout: in flight, drawn by one version of the policy after the other; on record; scored.

Legend: B answers, R tokens of an answer, K rewards of a list, F figures of an answer of several turns.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from charter.artifacts import durable
from charter.errors import loads_json
from charter.inference.generate import Answers, joined, pad_left
from charter.models.ranks import Ranks
from charter.train.ppo_math import equal_groups

RECORD = "rollouts"
"""Directory of a stage with the answers that it learnt from, where several versions drew them: a file for each rollout
and process, one line for each answer."""


@dataclass(frozen=True)
class FlyingAnswer:
    """A prompt and the answer so far; of each token who drew it, and its log-probability there and then."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()
    """Updates behind the weights that drew each token."""
    old: tuple[float, ...] = ()
    """Log-probabilities by those weights, as the trainer computes them; 0 until it has."""
    generator: tuple[float, ...] = ()
    """The same by another program that drew; empty where the trainer draws itself."""

    @property
    def context(self) -> list[int]:
        """Tokens that the next one follows."""
        return [*self.prompt, *self.tokens]

    def cut(self, most: int) -> "FlyingAnswer":
        """The answer as it was at so many tokens."""
        return FlyingAnswer(
            self.prompt, self.tokens[:most], self.versions[:most], self.old[:most], self.generator[:most]
        )


COLUMNS: Mapping[str, torch.dtype] = {
    "prompt": torch.long,
    "tokens": torch.long,
    "versions": torch.long,
    "old": torch.float32,
    "generator": torch.float32,
}
"""Of a `FlyingAnswer`, as a checkpoint holds them."""
LENGTHS = " lengths"
"""Ends the names of the lengths of its rows."""


@dataclass(frozen=True)
class Flight:
    """This process's answers of a rollout whose step is to come; those that have not ended are all of one length."""

    answers: tuple[FlyingAnswer, ...]

    @staticmethod
    def of(prompts: Sequence[Sequence[int]]) -> "Flight":
        """Nothing is drawn yet."""
        return Flight(tuple(FlyingAnswer(tuple(prompt)) for prompt in prompts))

    @property
    def drawn(self) -> int:
        """Tokens of the longest answer.

        >>> Flight((FlyingAnswer((1,), (2, 3), (0, 0)), FlyingAnswer((1,), (9,), (0,)))).drawn
        2
        """
        return max(len(item.tokens) for item in self.answers)

    def going(self, end: int, most: int) -> list[int]:
        """Answers that have not ended and may have more tokens.

        >>> Flight((FlyingAnswer((1,), (2, 3), (0, 0)), FlyingAnswer((1,), (9,), (0,)))).going(9, 4)
        [0]
        """
        return [
            place
            for place, item in enumerate(self.answers)
            if len(item.tokens) < most and (not item.tokens or item.tokens[-1] != end)
        ]

    def extended(self, places: Sequence[int], drawn: Answers, version: int) -> "Flight":
        """Put what a version has drawn behind the answers at these places."""
        counts, ids = drawn.answer_mask_BR.sum(1).tolist(), drawn.answer_BR.tolist()
        given = None if drawn.log_probability_BR is None else drawn.log_probability_BR.tolist()
        answers = list(self.answers)
        for row, place in enumerate(places):
            before, count = answers[place], counts[row]
            answers[place] = replace(
                before,
                tokens=(*before.tokens, *ids[row][:count]),
                versions=(*before.versions, *[version] * count),
                old=(*before.old, *[0.0] * count),
                generator=before.generator if given is None else (*before.generator, *given[row][:count]),
            )
        return Flight(tuple(answers))

    def with_old(self, old_BR: Tensor, version: int) -> "Flight":
        """Note log-probabilities of the tokens that a version has drawn."""
        rows = old_BR.tolist()
        return Flight(
            tuple(
                replace(
                    item,
                    old=tuple(
                        row[place] if drawer == version else before
                        for place, (drawer, before) in enumerate(zip(item.versions, item.old, strict=True))
                    ),
                )
                for item, row in zip(self.answers, rows, strict=True)
            )
        )

    def cut(self, most: int) -> "Flight":
        """The answers as they were at so many tokens."""
        return Flight(tuple(item.cut(most) for item in self.answers))

    def padded(
        self, column: Literal["versions", "old", "generator", "tokens"], width: int, device: torch.device
    ) -> Tensor:
        """One row for each answer, 0 behind its end."""
        return _padded([getattr(item, column) for item in self.answers], width, COLUMNS[column]).to(device)

    def as_answers(self, *, padding: int, device: torch.device) -> Answers:
        """The answers as a generator would have given them at once."""
        width = max(self.drawn, 1)
        prompt_BQ, prompt_mask_BQ = pad_left([item.prompt for item in self.answers], padding=padding)
        length_B = torch.tensor([len(item.tokens) for item in self.answers], device=device)
        mask_BR = torch.arange(width, device=device) < length_B[:, None]
        has_generator = any(item.generator for item in self.answers)
        return Answers(
            prompt_BQ.to(device),
            prompt_mask_BQ.to(device),
            self.padded("tokens", width, device).masked_fill(~mask_BR, padding),
            mask_BR,
            self.padded("generator", width, device) if has_generator else None,
        )

    def to_buffers(self, ranks: Ranks) -> dict[str, Tensor]:
        """All processes' answers as one, rank after rank: what a checkpoint holds."""
        buffers = {}
        for name, dtype in COLUMNS.items():
            rows = [getattr(item, name) for item in self.answers]
            width = max(ranks.gather(max(map(len, rows))))
            if width:
                buffers[name] = gathered(_padded(rows, width, dtype).to(ranks.device), ranks)
                buffers[name + LENGTHS] = gathered(torch.tensor([*map(len, rows)], device=ranks.device), ranks)
        return buffers

    @classmethod
    def from_buffers(cls, buffers: Mapping[str, Tensor], ranks: Ranks) -> "Flight":
        """This process's part of what `to_buffers` gave."""
        own = {name: value.chunk(ranks.data_size)[ranks.data_rank].tolist() for name, value in buffers.items()}
        columns = {
            name: [tuple(row[:length]) for row, length in zip(own[name], own[name + LENGTHS], strict=True)]
            for name in COLUMNS
            if name in own
        }
        return cls(
            tuple(
                FlyingAnswer(**{name: rows[place] for name, rows in columns.items()})
                for place in range(len(columns["prompt"]))
            )
        )

    def record(self, path: Path) -> None:
        """Write the answers down before they are learnt from, one line each."""
        durable.make_dir(path.parent)
        durable.write_file(path, "".join(json.dumps(asdict(item)) + "\n" for item in self.answers))


def record_path(directory: Path, step: int, data_step: int, ranks: Ranks) -> Path:
    """Return the place of this process's answers of a rollout; a step that a roll-back gave other data has another."""
    return directory / RECORD / f"{step:06d}-{data_step:06d}-{ranks.data_rank}of{ranks.data_size}.jsonl"


def read_record(path: Path) -> Flight:
    """The answers of a rollout that was learnt from, with the versions that drew them."""
    lines = [loads_json(line) for line in path.read_text().splitlines()]
    return Flight(tuple(FlyingAnswer(**{name: tuple(line[name]) for name in COLUMNS}) for line in lines))


def _padded(rows: Sequence[Sequence[float]], width: int, dtype: torch.dtype) -> Tensor:
    """Rows with zeros behind them.

    >>> _padded([(1, 2), ()], 3, torch.long).tolist()
    [[1, 2, 0], [0, 0, 0]]
    """
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype)


def gathered(value: Tensor, ranks: Ranks) -> Tensor:
    """Rows of all processes, rank after rank."""
    if ranks.data_size == 1:
        return value
    sent = value.to(torch.uint8) if value.dtype == torch.bool else value.contiguous()
    parts = [torch.empty_like(sent) for _ in range(ranks.data_size)]
    torch.distributed.all_gather(parts, sent, group=ranks.data_group)
    return torch.cat(parts).to(value.dtype)


@dataclass(frozen=True)
class Scored:
    """Sampled answers, group by group, and the scores that they got."""

    answers: Answers
    score_B: Tensor
    counted_B: Tensor | None = None
    """Answers that are learnt from; None for all."""
    reward_BK: Tensor | None = None
    failed_BK: Tensor | None = None
    seconds_BK: Tensor | None = None
    usd_BK: Tensor | None = None
    turns_BF: Tensor | None = None

    def without_equal_groups(self, samples: int) -> "Scored":
        """The same answers, those not counted whose group has one score."""
        differs_B = ~equal_groups(self.score_B, samples=samples).repeat_interleave(samples)
        return replace(self, counted_B=differs_B if self.counted_B is None else self.counted_B & differs_B)

    def filled_from(self, other: "Scored", *, padding: int) -> "Scored":
        """Rows that are not counted, replaced in order by the counted rows of another sampling, as far as they go.

        Seconds and money are those of both samplings, whose answers are as many: what is left out was paid for too.
        """
        assert self.counted_B is not None
        assert other.counted_B is not None
        empty, spare = (~self.counted_B).nonzero().squeeze(1), other.counted_B.nonzero().squeeze(1)
        count = min(len(empty), len(spare))
        source = torch.arange(len(self.score_B), device=self.score_B.device)
        source[empty[:count]] = len(self.score_B) + spare[:count]

        def filled(own: Tensor | None, theirs: Tensor | None) -> Tensor | None:
            return None if own is None or theirs is None else torch.cat([own, theirs])[source]

        def added(own: Tensor | None, theirs: Tensor | None) -> Tensor | None:
            return None if own is None or theirs is None else own + theirs

        return Scored(
            joined([self.answers, other.answers], padding=padding).rows(source, source.device),
            torch.cat([self.score_B, other.score_B])[source],
            torch.cat([self.counted_B, other.counted_B])[source],
            filled(self.reward_BK, other.reward_BK),
            filled(self.failed_BK, other.failed_BK),
            added(self.seconds_BK, other.seconds_BK),
            added(self.usd_BK, other.usd_BK),
            filled(self.turns_BF, other.turns_BF),
        )
