"""Fuzz one reader of tests/cases/readers.py with libFuzzer, by atheris: `fuzz_reader.py NAME CORPUS -OPTION=VALUE ...`.

It ends with 0 once -max_total_time is over, and else with the input that made the reader raise something other than an
error in words, take over -timeout seconds or over -rss_limit_mb.
"""

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cases"))
with atheris.instrument_imports(include=["charter"], enable_loader_override=False):
    from readers import READERS, refusal

name = sys.argv.pop(1)
directory = tempfile.TemporaryDirectory()
path = Path(directory.name, name)
_, read = READERS[name]


def try_one(data: bytes) -> None:
    """Let the reader read what libFuzzer made."""
    path.write_bytes(data)
    said = refusal(read, path)
    assert said is None or said.strip()


atheris.Setup(sys.argv, try_one)
atheris.Fuzz()
