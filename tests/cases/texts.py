"""All texts of a data set at once, where a test looks at them."""

from pathlib import Path

from charter.data.dataset import Conversation, each_text


def read_texts(path: Path, *more: object) -> tuple[Conversation, ...]:
    return tuple(each_text(path, *more))  # type: ignore[arg-type]
