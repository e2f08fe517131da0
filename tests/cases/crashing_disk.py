"""What a disk may hold after a power cut: everything that was flushed, and any part of what was not.

POSIX promises no more than this: the content of a file as of its last fsync, the entries of a directory as of its last
fsync. What came after may be there, or not: data may be missing, torn or zero, a new name lost, an old name back.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA: dict[str, Callable[[bytes], bytes]] = {
    "kept": lambda content: content,
    "lost": lambda content: b"",
    "torn": lambda content: content[: len(content) // 2],
    "zero": lambda content: bytes(len(content)),
}
Entries = dict[str, int]
Tree = dict[str, bytes | None]
"""Path -> content; None for a directory."""


@dataclass
class CrashingDisk:
    """Watches the flushes below a directory; `states` yields what a crash now could leave."""

    root: Path
    content: dict[int, bytes] = field(default_factory=dict)
    """Inode -> content when it was last flushed."""
    entries: dict[int, Entries] = field(default_factory=dict)
    """Inode of a directory -> its names when it was last flushed."""
    held: dict[int, int] = field(default_factory=dict)
    """A descriptor for every inode seen: so that no number is used twice, and removed files can still be read."""

    def flush_all(self) -> None:
        """Take all that is there for flushed."""
        for path in [self.root, *self.root.rglob("*")]:
            descriptor = os.open(path, os.O_RDONLY)
            self.flushed(descriptor)
            os.close(descriptor)

    def flushed(self, descriptor: int) -> None:
        """One file or directory has been flushed."""
        inode = self._hold(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self.entries[inode] = self._now(path)
        else:
            self.content[inode] = self._read(inode)

    def states(self) -> Iterator[Tree]:
        """Names lost or kept, everywhere or everywhere but in one directory, with every fate of unflushed data."""
        directories = [self.root, *(path for path in sorted(self.root.rglob("*")) if path.is_dir())]
        inodes = [self._hold_path(path) for path in directories]
        now = {inode: self._now(path) for inode, path in zip(inodes, directories, strict=True)}
        for usual, other in itertools.product((True, False), [*inodes, None]):
            names = {
                inode: now[inode] if usual != (inode == other) else self.entries.get(inode, {}) for inode in inodes
            }
            for fate in DATA.values():
                yield dict(self._tree(inodes[0], "", {**self.entries, **names}, fate))

    def _tree(
        self, inode: int, prefix: str, names: dict[int, Entries], fate: Callable[[bytes], bytes]
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, child in sorted(names.get(inode, {}).items()):
            if os.path.isdir(f"/proc/self/fd/{self.held[child]}") or child in names:
                yield f"{prefix}{name}", None
                yield from self._tree(child, f"{prefix}{name}/", names, fate)
                continue
            now, flushed = self._read(child), self.content.get(child)
            yield f"{prefix}{name}", now if now == flushed else fate(now) if flushed is None else flushed

    def _now(self, directory: Path) -> Entries:
        return {path.name: self._hold_path(path) for path in directory.iterdir()}

    def _hold_path(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        inode = self._hold(descriptor)
        os.close(descriptor)
        return inode

    def _hold(self, descriptor: int) -> int:
        inode = os.fstat(descriptor).st_ino
        if inode not in self.held:
            self.held[inode] = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        return inode

    def _read(self, inode: int) -> bytes:
        descriptor = self.held[inode]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def close(self) -> None:
        """Let go of everything."""
        for descriptor in self.held.values():
            os.close(descriptor)


def write_tree(root: Path, tree: Tree) -> None:
    """Put a state on a disk."""
    root.mkdir(parents=True)
    for name, content in tree.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


def watched(disk: CrashingDisk, monkeypatch: Any, look: Callable[[], None]) -> None:
    """Call `look` before every flush, rename and removal that Charter does, and tell the disk of the flushes."""
    from charter.artifacts import faults

    rename, crash_at = os.rename, faults._crash_at

    def flush(descriptor: int) -> None:
        look()
        disk.flushed(descriptor)

    def move(source: Any, target: Any) -> None:
        look()
        rename(source, target)

    def at(number: int, when: Any) -> None:
        look()
        crash_at(number, when)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "rename", move)
    monkeypatch.setattr(faults, "_crash_at", at)
