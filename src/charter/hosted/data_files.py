"""The rows of a stage as JSON lines that an engine reads: made by Charter's own readers, in Charter's own order.

Conversations are tokenised and cut exactly as the native engine does it, and every batch of the file is the batch that
the native engine would take at that step, so the engine reads the file from its beginning to its end. What an engine
cannot express of a row (a soft label) is refused with the number of such rows, never rounded.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from charter.artifacts.draws import draw_seed
from charter.artifacts.group import START
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.whole_dir import publish_dir
from charter.data.dataset import Pair, Turn, read_conversations, read_pairs, read_prompts
from charter.data.rows import messages
from charter.engines import handover_engine
from charter.engines.common.engine import NOTHING, PARQUET, TOKENS
from charter.engines.common.reward_file import row_text
from charter.engines.installed import adapter_of
from charter.errors import DataError, UsageError, needing
from charter.hosted.weights import check_prompts
from charter.inference.score import encode_scored
from charter.models.chat import encode_prompt
from charter.models.ranks import Ranks
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import DpoStage, PreferenceModelStage, PretrainStage, SftStage
from charter.spec.stage_base import Optimization
from charter.train.encoded_pairs import encode_dpo_pair
from charter.train.packing import pack
from charter.train.preference_model import stage_pairs
from charter.train.schedule import batch_rows, total_steps
from charter.train.setup import Setup
from charter.train.token_data import conversation_rows, text_stream


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


def dpo_rows(pairs: Sequence[Pair], tokenizer: Any, seq_len: int, *, drops: bool = False) -> PairRows:
    """`prompt`, `chosen` and `rejected` as messages, which the engine tokenises itself.

    An engine that `drops` what has no room for an answer is not given such pairs, since every batch after them would
    be another one.
    """
    pairs = hard(pairs)
    rows: list[dict[str, Any]] = []
    tokens, cut = [], 0
    for pair in pairs:
        encoded = encode_dpo_pair(tokenizer, pair, max_tokens=1 << 30)
        if drops and len(encoded.prompt) >= seq_len:
            continue
        rows.append(
            {
                "prompt": messages(pair.prompt),
                "chosen": messages([Turn("assistant", pair.chosen)]),
                "rejected": messages([Turn("assistant", pair.rejected)]),
            }
        )
        lengths = [len(encoded.prompt) + len(answer) for answer in (encoded.chosen, encoded.rejected)]
        cut += max(lengths) > seq_len
        tokens.append(sum(min(length, seq_len) for length in lengths))
    note = (
        f"{cut} of {len(pairs)} pairs are longer than seq_len {seq_len}: the engine cuts them by its own rule, "
        "where the native engine keeps at most 3/4 of it for an answer and cuts the prompt at the left"
    )
    left_out = len(pairs) - len(rows)
    if pairs and not rows:
        raise DataError(f"none of {len(pairs)} pairs has a prompt of less than seq_len {seq_len} tokens")
    without = (
        f"{left_out} of {len(pairs)} pairs, whose prompt alone fills seq_len {seq_len}, are left out: TRL drops them"
    )
    return PairRows(rows=rows, tokens=tokens, notes=(*([note] if cut else []), *([without] if left_out else [])))


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


DATA = "data"
Row = Mapping[str, Any]
BEAT_ROWS = 1000
ROWS_PER_GROUP = 4096
"""Rows that a Parquet file is written in."""


@dataclass(frozen=True, kw_only=True)
class RoleRows:
    """Rows of a role of a stage, before they are put in order."""

    count: int
    """Rows that a batch is drawn from."""
    row: Callable[[int], Row]
    tokens: Callable[[int], int]
    items: int
    """Rows of the file where each is written once: more than `count` where they are packed."""
    sequences: int = 1
    packs: bool = False
    """The engine packs the rows into batches of its own."""
    apart: bool = False
    """Both answers of a pair are rows of their own."""
    notes: tuple[str, ...] = ()
    """What a reader of the log must know."""


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """The files of a stage, and how much work they are."""

    paths: Mapping[str, str]
    """Role -> file."""
    rows: Mapping[str, int]
    target_steps: int
    counters: Mapping[int, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    """Step, from 1 -> tokens and pairs of its batch, where the file is read in order."""
    notes: tuple[str, ...] = ()


def write_data(stage: StageDir, setup: Setup, tokenizer: Any, directory: Path) -> DataFiles:
    """Write the files of a stage into a directory that appears whole."""
    spec = stage.job.spec
    if not isinstance(spec, Optimization):
        assert isinstance(spec, PpoStage)
        return _write_prompts(stage, setup, tokenizer, directory, spec)
    rows = _rows(stage, setup, tokenizer)
    target = total_steps(epochs=spec.epochs, steps=spec.steps, rows=rows.count, global_batch=spec.global_batch)
    order = range(rows.items) if rows.packs else _in_order(stage, target, spec.global_batch, rows.count)
    counters = {} if rows.packs else _counters(rows, target, spec.global_batch, order, pairs=rows.sequences == 2)
    lines = _answers(rows, order, spec.global_batch) if rows.apart else (rows.row(index) for index in order)
    path = _write(stage, directory, "data", lines)
    return DataFiles(
        paths={"data": path},
        rows={"data": len(order) * (2 if rows.apart else 1)},
        target_steps=target,
        counters=counters,
        notes=rows.notes,
    )


def _rows(stage: StageDir, setup: Setup, tokenizer: Any) -> RoleRows:
    """Return the rows of a stage in the form that its engine reads."""
    spec = stage.job.spec
    reads = handover_engine(spec.engine).reads
    if reads == TOKENS:
        return TOKEN_ROWS[spec.kind](stage, setup, tokenizer, spec)
    if reads == NOTHING or spec.kind not in MESSAGE_ROWS:
        raise UsageError(
            f"the data of {spec.engine} is made by tools of its own, which Charter does not run\n"
            "  `charter artifacts export` renders the stage with the commands that make its data"
        )
    return MESSAGE_ROWS[spec.kind](stage, setup, tokenizer, spec)


def _conversation_tokens(stage: StageDir, setup: Setup, tokenizer: Any, spec: SftStage) -> RoleRows:
    data = conversation_rows(stage, tokenizer, seq_len=spec.seq_len, ranks=Ranks())
    setup.count_skipped(data.skipped)
    return RoleRows(
        count=len(pack(data.lengths(), spec.seq_len)) if spec.packing else len(data),
        row=lambda index: _masked(data[index].ids, data[index].is_answer),
        tokens=lambda index: len(data[index].ids),
        items=len(data),
        packs=spec.packing,
    )


def _text_tokens(stage: StageDir, setup: Setup, tokenizer: Any, spec: PretrainStage) -> RoleRows:
    stream = text_stream(stage, tokenizer, seq_len=spec.seq_len, ranks=Ranks())
    setup.count_skipped(stream.skipped)
    return RoleRows(
        count=len(stream),
        row=lambda index: _masked(stream[[index]][0].tolist(), [True] * spec.seq_len),
        tokens=lambda index: spec.seq_len,
        items=len(stream),
    )


def _scored_pairs(stage: StageDir, setup: Setup, tokenizer: Any, spec: PreferenceModelStage) -> RoleRows:
    return _listed(reward_rows(setup, tokenizer, spec), spec.SEQUENCES_PER_ROW)


def _chosen_pairs(stage: StageDir, setup: Setup, tokenizer: Any, spec: DpoStage) -> RoleRows:
    rows = dpo_rows(setup.rows("data", read_pairs), tokenizer, spec.seq_len, drops=True)
    return replace(_listed(rows, spec.SEQUENCES_PER_ROW), apart=spec.loss == "kto")


def _conversation_messages(stage: StageDir, setup: Setup, tokenizer: Any, spec: SftStage) -> RoleRows:
    """Return conversations as messages; tokens are not counted, since the engine makes them."""
    conversations = [item.turns for item in setup.rows("data", read_conversations)]
    rows = [{"messages": messages(turns)} for turns in conversations if any(turn.role == "assistant" for turn in turns)]
    if not rows:
        raise DataError("no conversation with an assistant turn in the stage's data; the loss would count nothing")
    listed = _listed(PairRows(rows=rows, tokens=[0] * len(rows)), spec.SEQUENCES_PER_ROW)
    return replace(listed, packs=spec.packing)


def _pair_messages(stage: StageDir, setup: Setup, tokenizer: Any, spec: PreferenceModelStage | DpoStage) -> RoleRows:
    pairs = stage_pairs(setup, spec) if spec.kind == "preference_model" else setup.rows("data", read_pairs)
    rows, adapter = dpo_rows(pairs, tokenizer, spec.seq_len), adapter_of(stage.job)
    return _listed(replace(rows, rows=[adapter.pair_row(row) for row in rows.rows]), spec.SEQUENCES_PER_ROW)


def _listed(rows: PairRows, sequences: int) -> RoleRows:
    return RoleRows(
        count=len(rows.rows),
        row=lambda index: rows.rows[index],
        tokens=lambda index: rows.tokens[index],
        items=len(rows.rows),
        sequences=sequences,
        notes=rows.notes,
    )


TOKEN_ROWS: Mapping[str, Callable[[StageDir, Setup, Any, Any], RoleRows]] = MappingProxyType(
    {
        "pretrain": _text_tokens,
        "sft": _conversation_tokens,
        "preference_model": _scored_pairs,
        "dpo": _chosen_pairs,
    }
)
"""Kind of stage -> its rows for an engine that reads tokens."""
MESSAGE_ROWS: Mapping[str, Callable[[StageDir, Setup, Any, Any], RoleRows]] = MappingProxyType(
    {
        "pretrain": _text_tokens,
        "sft": _conversation_messages,
        "preference_model": _pair_messages,
        "dpo": _pair_messages,
    }
)
"""Kind of stage -> its rows for an engine that reads messages; texts have no turns and stay tokens."""


def _masked(ids: Sequence[int], marks: Sequence[bool]) -> Row:
    """Tokens, and which of them count; the first never does, since nothing predicts it (TRL would count it)."""
    return {"input_ids": [*map(int, ids)], "assistant_masks": [0, *map(int, marks[1:])]}


def _in_order(stage: StageDir, target: int, batch: int, rows: int) -> list[int]:
    """The rows of every batch, one batch after the other, as the native engine draws them."""
    seed = draw_seed(stage.job.seed, stage.job.stage, "order")
    return [row for step in range(target) for row in batch_rows(step, rows=rows, batch=batch, seed=seed)]


MOST_ORDERS = 200
"""Of a batch, that are tried: one is enough unless pairs share prompts."""


def _answers(rows: RoleRows, order: Sequence[int], batch: int) -> Iterator[Row]:
    """Yield the answers to the pairs of each batch with their labels, all chosen ones first.

    TRL's KTOTrainer reads a prompt with the answer of the row before, and the first of a micro-batch with its last one
    (kto_trainer.py, _prepare_dataset); so pairs are put in an order in which that is no answer to the same prompt.
    """
    for start in range(0, len(order), batch):
        pairs, draw = [rows.row(index) for index in order[start : start + batch]], random.Random(start)
        for _ in range(MOST_ORDERS):
            if _meet_others([str(pair["prompt"]) for pair in pairs]):
                break
            draw.shuffle(pairs)
        else:
            prompts = len({str(pair["prompt"]) for pair in pairs})
            raise DataError(
                f"loss: kto compares answers with those to other prompts, and the {batch} pairs of batch "
                f"{start // batch + 1} have {prompts} prompts, which could not be kept apart in TRL's micro-batches\n"
                "  change global_batch, or compute the stage with `engine: native`"
            )
        for name in ("chosen", "rejected"):
            yield from ({"prompt": one["prompt"], "completion": one[name], "label": name == "chosen"} for one in pairs)


def _meet_others(prompts: Sequence[str]) -> bool:
    """Return True if no answer meets its own prompt in micro-batches of any size, the prompts being read twice in turn.

    >>> _meet_others("ab"), _meet_others("abcb"), _meet_others("aba"), _meet_others("a")
    (True, True, False, False)
    """
    rows = [*prompts, *prompts]
    sizes = [size for size in range(2, len(rows) + 1) if len(rows) % size == 0]
    ends = ((first, first + size - 1) for size in sizes for first in range(0, len(rows), size))
    return all(one != other for one, other in pairwise(rows)) and all(rows[one] != rows[other] for one, other in ends)


def _counters(
    rows: RoleRows, target: int, batch: int, order: Sequence[int], *, pairs: bool
) -> dict[int, Mapping[str, int]]:
    """The work of each step, counted as the native engine counts it."""
    by_step: dict[int, Mapping[str, int]] = {}
    for step in range(target):
        tokens = sum(rows.tokens(index) for index in order[step * batch : (step + 1) * batch])
        by_step[step + 1] = {"tokens": tokens, **({"pairs": batch} if pairs else {})}
    return by_step


def _write(stage: StageDir, directory: Path, role: str, rows: Iterable[Row]) -> str:
    """The file of a role, in the format of the engine; its path."""
    name = f"{role}{handover_engine(stage.job.spec.engine).data_suffix}"

    def write(target: Path) -> None:
        if name.endswith(PARQUET):
            write_parquet(rows, target / name)
            return
        with (target / name).open("w", encoding="utf-8") as file:
            for number, row in enumerate(rows):
                if number % BEAT_ROWS == 0:
                    stage.beat(START)
                file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")

    publish_dir(directory, write)
    return str(directory / name)


def _write_prompts(stage: StageDir, setup: Setup, tokenizer: Any, directory: Path, spec: PpoStage) -> DataFiles:
    """The prompts of every rollout in Charter's order; a rollout has `samples_per_prompt` answers to each."""
    prompts = setup.rows("prompts", read_prompts)
    fitting = [item for item in prompts if len(encode_prompt(tokenizer, item.turns)) <= spec.max_prompt_tokens]
    if not fitting:
        raise DataError(f"none of {len(prompts)} prompts has at most max_prompt_tokens {spec.max_prompt_tokens} tokens")
    if spec.preference_model is not None:
        check_prompts(stage.job.only("reward").location(), [item.turns for item in fitting])
    left_out = len(prompts) - len(fitting)
    adapter = adapter_of(stage.job)
    rollouts = -(-spec.episodes // spec.rollout_batch)
    order = _in_order(stage, rollouts, spec.rollout_batch // spec.samples_per_prompt, len(fitting))

    def rows() -> Iterator[Row]:
        for number, index in enumerate(order):
            item = fitting[index]
            carried = row_text(item.turns, item.columns, number) if spec.rewards else None
            yield adapter.prompt_row(item.turns, kind=spec.kind, index=number, carried=carried)

    path = _write(stage, directory, "prompts", rows())
    note = (
        f"{left_out} of {len(prompts)} prompts are longer than max_prompt_tokens {spec.max_prompt_tokens} and are left "
        "out: the engine cannot cut them"
    )
    return DataFiles(
        paths={"prompts": path},
        rows={"prompts": len(order)},
        target_steps=rollouts,
        notes=(note,) if left_out else (),
    )


def write_parquet(rows: Iterable[Row], path: Path) -> int:
    """Write all rows as one Parquet file; returns their number."""
    with needing("Parquet files need pyarrow", "data"):
        import pyarrow as arrow
        from pyarrow import parquet
    count, writer = 0, None
    group: list[Row] = []

    def flush() -> None:
        nonlocal writer
        table = arrow.Table.from_pylist(group)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
        group.clear()

    for row in rows:
        group.append(row)
        count += 1
        if len(group) == ROWS_PER_GROUP:
            flush()
    if group:
        flush()
    if writer is not None:
        writer.close()
    return count
