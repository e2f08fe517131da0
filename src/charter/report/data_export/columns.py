"""Columns of a stage's records that are exported, and their meaning. Pure."""

from collections.abc import Mapping
from typing import Any

LEFT_OUT: Mapping[str, frozenset[str]] = {
    "critique": frozenset({"policy", "critic", "template", "tokens", "seed", "examples"}),
    "label": frozenset({"judge", "template", "tokens", "seed", "both_orders", "judgements"}),
    "generate": frozenset({"policy", "tokens", "seed"}),
    "prepare": frozenset(),
}
"""By kind of stage: what says how a record was made, and is of no use without the stage that made it."""
MEANINGS: Mapping[str, str] = {
    "id": "Name of the row; equal ids in two exports are the same row",
    "messages": "Turns of `role` and `content`; the last is the answer to be learnt",
    "prompt": "Turns before the answers, or one text",
    "completion": "The answer to `prompt`",
    "chosen": "The better answer, as one turn of the assistant",
    "rejected": "The other answer, as one turn of the assistant",
    "text": "Plain text",
    "chosen_probability": "Soft label: how probable it is that `chosen` is better, 0.5 to 1; TRL does not read it",
    "margin": "By how much `chosen` is better, on the scale of scores; TRL's RewardTrainer reads it",
    "principle": "The principle of the constitution that decided",
    "principles": "All principles of which the label is the average",
    "judge_model": "What judged, as its server or directory names it",
    "critic_model": "What criticised and revised",
    "policy_model": "What wrote the answer",
    "format": "How the judge was asked",
    "source": "Where the pair comes from: the policy, or the data set of candidates",
    "round": "Round of critique and revision, from 1",
    "init_prompt": "The last turn of the prompt",
    "init_response": "The answer before this round",
    "critic_prompt": "How the critique was asked for",
    "critic_response": "The critique",
    "revision_prompt": "How the revision was asked for",
    "revision_response": "The revision; the last turn of `messages`",
    "prompt_id": "The row of the prompts that was answered",
    "answer": "Which of the answers to one prompt, from 1",
    "finished": "Whether the text ended before the limit of its length",
    "shown": "Ids of the prompts that a new one was written after",
}


def exported_row(record: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A record without what is left out; no value changes."""
    return {name: value for name, value in record.items() if name not in LEFT_OUT[kind]}
