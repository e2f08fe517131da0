"""What a power cut leaves of one durable action: a write that is half there, a removal that is half done.

For tests. Data that were not flushed may be lost, so whatever an action has added to files is cut in its middle.
"""

import os
from collections.abc import Mapping
from pathlib import Path


def sizes_of(path: Path | None) -> dict[Path, int]:
    """Bytes of a file, or of every file below a directory; nothing for what is not there."""
    if path is None:
        return {}
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    return {item: item.stat().st_size for item in sorted(files)}


def cut_what_was_added(path: Path, before: Mapping[Path, int]) -> None:
    """Leave half of what every file has gained; of flushed files that have gained nothing, half of all."""
    sizes = sizes_of(path)
    grown = {item: size for item, size in sizes.items() if size != before.get(item, 0)}
    for item, size in (grown or sizes).items():
        kept = before.get(item, 0) if grown else 0
        os.truncate(item, kept + max(0, size - kept) // 2)


def remove_half(path: Path) -> None:
    """Remove every other file below a directory, the first one included."""
    for item in [*sizes_of(path)][::2]:
        item.unlink()
