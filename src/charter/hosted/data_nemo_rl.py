"""Rows as NeMo RL reads them, of JSON lines; conversations need no other form than `messages`.

Read in NeMo RL 0.6.0 (7ea279a): nemo_rl/data/datasets/preference_datasets/preference_dataset.py (`context`,
`completions` with their ranks, 0 for the better), nemo_rl/data/processors.py (`math_hf_data_processor`: one text).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from charter.data.dataset import Turn
from charter.errors import DataError


def pair_row(row: Mapping[str, Any]) -> dict[str, object]:
    """A pair of `prompt`, `chosen` and `rejected` message lists."""
    ranked = [{"rank": rank, "completion": row[name]} for rank, name in enumerate(("chosen", "rejected"))]
    return {"context": row["prompt"], "completions": ranked}


def prompt_row(turns: Sequence[Turn], index: int) -> dict[str, object]:
    """A prompt of one user turn; there is no answer to compare with."""
    if [turn.role for turn in turns] != ["user"]:
        roles = ", ".join(turn.role for turn in turns)
        raise DataError(f"NeMo RL takes prompts of one user turn; prompt {index} has: {roles}")
    return {"input": turns[0].content, "output": ""}
