"""Rows as verl reads them: Parquet files with its column names.

Read in verl 0.9.1: utils/dataset/multiturn_sft_dataset.py (`messages`), utils/dataset/rl_dataset.py and
experimental/reward_loop/reward_manager/naive.py (`prompt`, `data_source`, `reward_model`, `extra_info`).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from charter.data.dataset import Turn
from charter.errors import MissingExtraError

ROWS_PER_GROUP = 4096
Row = dict[str, object]


def prompt_row(turns: Sequence[Turn], *, source: str, index: int) -> Row:
    """A prompt whose answers a model scores: there is no right answer to compare with."""
    return {
        "prompt": _messages(turns),
        "data_source": source,
        "reward_model": {"style": "model", "ground_truth": ""},
        "extra_info": {"index": index},
    }


def write_parquet(rows: Iterable[Row], path: Path) -> int:
    """Write all rows and say how many."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        hint = "install it with: pip install 'charter-plan[data]'"
        raise MissingExtraError(f"Parquet files need pyarrow; {hint}") from None
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


def _messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.content} for turn in turns]
