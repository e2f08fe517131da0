"""JSON lines with NeMo RL's names."""

import pytest

from charter.data.dataset import Turn
from charter.errors import DataError
from charter.hosted.message_rows import nemo_rl_pair, nemo_rl_prompt

USER, YES, NO = (
    {"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("assistant", "c"))
)


def test_the_better_answer_has_rank_0() -> None:
    assert nemo_rl_pair({"prompt": [USER], "chosen": [YES], "rejected": [NO]}) == {
        "context": [USER],
        "completions": [{"rank": 0, "completion": [YES]}, {"rank": 1, "completion": [NO]}],
    }


def test_a_prompt_is_one_text() -> None:
    assert nemo_rl_prompt([Turn(role="user", content="a")], 0) == {"input": "a", "output": ""}
    with pytest.raises(DataError, match="prompt 3 has: user, assistant, user"):
        nemo_rl_prompt([Turn(role=role, content="a") for role in ("user", "assistant", "user")], 3)
