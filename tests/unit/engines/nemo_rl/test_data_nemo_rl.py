"""JSON lines with NeMo RL's names."""

import pytest

from charter.data.dataset import Turn
from charter.engines.nemo_rl.adapter import NemoRlAdapter
from charter.errors import DataError

ADAPTER = NemoRlAdapter()
USER, YES, NO = (
    {"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("assistant", "c"))
)


def test_the_better_answer_has_rank_0() -> None:
    assert ADAPTER.pair_row({"prompt": [USER], "chosen": [YES], "rejected": [NO]}) == {
        "context": [USER],
        "completions": [{"rank": 0, "completion": [YES]}, {"rank": 1, "completion": [NO]}],
    }


def test_a_prompt_is_one_text() -> None:
    assert ADAPTER.prompt_row([Turn(role="user", content="a")], kind="ppo", index=0) == {"input": "a", "output": ""}
    with pytest.raises(DataError, match="prompt 3 has: user, assistant, user"):
        ADAPTER.prompt_row(
            [Turn(role=role, content="a") for role in ("user", "assistant", "user")], kind="ppo", index=3
        )
