"""Readers of other people's files, fuzzed by what libFuzzer sees of their code: read, or refused in words.

CHARTER_CHAOS_FUZZ_SECONDS is for all readers together.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from readers import ABSURD, ODD, READERS, content

pytest.importorskip("atheris", reason="atheris does not run here")
pytestmark = pytest.mark.slow
SECONDS = float(os.environ.get("CHARTER_CHAOS_FUZZ_SECONDS", "60"))
HARNESS = Path(__file__).with_name("fuzz_reader.py")
INPUT_SECONDS, MEGABYTES, INPUT_BYTES = 20, 3000, 8192
"""Longest time and most memory for an input, and its size."""


def dictionary():
    """Odd words in libFuzzer's form: each byte as an escape."""
    words = [word.encode("utf-8", errors="replace")[:60] for word in (*ABSURD, *ODD)]
    return "\n".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in words)


@pytest.mark.parametrize("name", sorted(READERS))
def test_what_libfuzzer_makes_is_read_or_refused(name, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "seed").write_bytes(content(name))
    (tmp_path / "words.dict").write_text(dictionary())
    options = {
        "max_total_time": max(1, round(SECONDS / len(READERS))),
        "timeout": INPUT_SECONDS,
        "rss_limit_mb": MEGABYTES,
        "max_len": INPUT_BYTES,
        "dict": tmp_path / "words.dict",
        "artifact_prefix": f"{tmp_path}/",
        "print_final_stats": 1,
    }
    command = [sys.executable, str(HARNESS), name, str(corpus), *(f"-{key}={value}" for key, value in options.items())]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    inputs = [path.read_bytes() for path in tmp_path.glob("*-*") if path.is_file()]
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}\n{inputs}"
    assert "stat::number_of_executed_units" in ended.stderr
