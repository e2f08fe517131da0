"""Log-probabilities of whole choices: a figure of several tokens counts with all of them.

Most choices differ in their first token, which is all that is looked at then. "1" and "10" may not: tokenizers that
write every digit by itself begin both alike. Such choices are read to their ends, and one that another goes on from
gets the probability of standing alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from charter.errors import DataError
from charter.inference.packed_rows import is_packable, last_token_log_probabilities
from charter.inference.score import next_token_log_probabilities
from charter.models.language_model import LanguageModel

ChoiceIds = tuple[tuple[int, ...], ...]


def choice_ids(tokenizer: object, choices: Sequence[str]) -> ChoiceIds:
    """As many tokens of each choice as tell it from the others: one where they all begin differently."""
    whole = tuple(tuple(tokenizer(choice, add_special_tokens=False)["input_ids"]) for choice in choices)  # type: ignore[operator]
    if len(set(whole)) < len(whole) or not all(whole):
        raise DataError(f"this tokenizer writes {', '.join(map(repr, choices))} with the same tokens, or with none")
    first = tuple(ids[:1] for ids in whole)
    return first if len(set(first)) == len(first) else whole


def choice_values(
    language_model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    choices: ChoiceIds,
    *,
    read: Sequence[int] | None = None,
    dtype: str = "fp32",
) -> Tensor:
    """log p of each choice after each prompt, as [B, len(choices)].

    One pass over the prompts for each beginning that several choices share; one in all where none do. `read` is
    for choices of one token (see `next_token_log_probabilities`).
    """
    starts = sorted(
        {ids[:length] for ids in choices for length in range(len(ids))}, key=lambda start: (len(start), start)
    )
    if len(starts) > 1 and read is not None and set(read) != {1}:
        raise DataError("choices of several tokens are read after the last token of a question only")
    is_packed = (read is None or set(read) == {1}) and is_packable(language_model)
    value_B: dict[tuple[int, ...], Tensor] = {}
    for start in starts:
        following = sorted({ids[len(start)] for ids in choices if len(ids) > len(start) and ids[: len(start)] == start})
        rows = [[*prompt, *start] for prompt in prompts]
        if is_packed:
            value_BF = last_token_log_probabilities(language_model, rows, following, dtype=dtype)
        else:
            own = read if not start else None
            value_BF = next_token_log_probabilities(language_model, rows, following, read=own, dtype=dtype)
        before_B = value_B.get(start, torch.zeros(()))
        value_B |= {(*start, token): before_B + value_BF[:, place] for place, token in enumerate(following)}
    return torch.stack([_alone(value_B, ids, choices) for ids in choices], 1)


def _alone(value_B: dict[tuple[int, ...], Tensor], ids: tuple[int, ...], choices: ChoiceIds) -> Tensor:
    """log p of a choice less the probability that it goes on to be a longer one."""
    longer = [other for other in choices if len(other) > len(ids) and other[: len(ids)] == ids]
    nearest = [other for other in longer if not any(other != item and other[: len(item)] == item for item in longer)]
    if not nearest:
        return value_B[ids]
    share_B = torch.stack([(value_B[other] - value_B[ids]).exp() for other in nearest]).sum(0)
    # Rounding may bring the share to 1: what is left is then less than one part in 2^23, the last bit of fp32.
    return value_B[ids] + torch.log1p(-share_B.clamp_max(1 - 2**-23))
