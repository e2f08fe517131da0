"""Rows of engines that tokenise by themselves: conversations and pairs as lists of messages."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from charter.data.dataset import Turn, read_conversations
from charter.engines.handover import handover_engine
from charter.engines.verl.rows import prompt_row
from charter.errors import DataError, UsageError
from charter.hosted.pair_rows import PairRows, dpo_rows, messages
from charter.spec.stage import DpoStage, PreferenceModelStage, PretrainStage, SftStage, Stage
from charter.train.setup import Setup

TOKENISED = frozenset({"trl", "accelerate", "deepspeed"})
"""Engines that read tokens, as Charter makes them."""
_INDEXED, _RANKED = "megatron", "nemo_rl"


def reads_messages(stage: Stage) -> bool:
    """Return True if a stage's engine is given messages, and not tokens."""
    return stage.engine not in TOKENISED


def message_rows(setup: Setup, tokenizer: Any, stage: Stage) -> PairRows:
    """The rows of a stage as messages; tokens are not counted, since the engine makes them."""
    if stage.engine == _INDEXED or isinstance(stage, PretrainStage):
        raise UsageError(
            f"the data of {stage.engine} is made by tools of its own, which Charter does not run\n"
            "  `charter artifacts export` renders the stage with the commands that make its data"
        )
    if isinstance(stage, SftStage):
        conversations = [item.turns for item in setup.rows("data", read_conversations)]
        rows = [
            {"messages": messages(turns)} for turns in conversations if any(turn.role == "assistant" for turn in turns)
        ]
        if not rows:
            raise DataError("no conversation with an assistant turn in the stage's data; the loss would count nothing")
        return PairRows(rows=rows, tokens=[0] * len(rows))
    assert isinstance(stage, PreferenceModelStage | DpoStage)
    pairs = dpo_rows(setup, tokenizer, stage)
    return replace(pairs, rows=[nemo_rl_pair(row) for row in pairs.rows]) if stage.engine == _RANKED else pairs


def prompt_of_engine(stage: Stage, turns: Sequence[Turn], index: int) -> Mapping[str, Any]:
    """A prompt as the engine of a stage reads it."""
    if stage.engine == "verl":
        return prompt_row(turns, source=stage.kind, index=index)
    if stage.engine == _RANKED:
        return nemo_rl_prompt(turns, index)
    return {"prompt": messages(turns)}


def suffix_of(stage: Stage) -> str:
    """Of the file that the engine of a stage reads."""
    return handover_engine(stage.engine).data_suffix


def nemo_rl_pair(row: Mapping[str, Any]) -> dict[str, object]:
    """A pair of `prompt`, `chosen` and `rejected` message lists, as NeMo RL ranks them: 0 for the better.

    Read in NeMo RL 0.6.0 (7ea279a): nemo_rl/data/datasets/preference_datasets/preference_dataset.py.
    """
    ranked = [{"rank": rank, "completion": row[name]} for rank, name in enumerate(("chosen", "rejected"))]
    return {"context": row["prompt"], "completions": ranked}


def nemo_rl_prompt(turns: Sequence[Turn], index: int) -> dict[str, object]:
    """A prompt of one user turn; there is no answer to compare with (nemo_rl/data/processors.py)."""
    if [turn.role for turn in turns] != ["user"]:
        roles = ", ".join(turn.role for turn in turns)
        raise DataError(f"NeMo RL takes prompts of one user turn; prompt {index} has: {roles}")
    return {"input": turns[0].content, "output": ""}
