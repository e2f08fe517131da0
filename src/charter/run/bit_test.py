"""The bit test: does this machine compute the same bits twice?

Exact resume rests on it. Another GPU, driver, library or setting of the environment may break it without a word, so it is
measured with the engine as it trains: two processes, one after the other, train the same small model from scratch on the
same rows, and every file that they publish is compared.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from charter.artifacts.record import read_record
from charter.launch.machine import gpus_here
from charter.run.doctor import Check
from charter.run.paths import earlier_stage_dirs

TEMPLATE, STAGE = "cai-smoke", "pretrain"
STEPS = 8
LONGEST_SECONDS = 300.0
"""Of one of the two runs, which takes some 10 s: a machine that is busy is no fault."""
BITS = "the same bits twice"
ADVICE = (
    "a run that is killed here would not end with the bits of an undisturbed one: compare drivers and libraries with a "
    "machine where this passes, and look for variables that choose kernels (NVIDIA_TF32_OVERRIDE, NCCL_*, MKL_*)"
)


def bit_test(options: Sequence[str] = ()) -> Check:
    """Train twice and compare; `options` go to both runs, as `--set` of `charter run` takes them."""
    with tempfile.TemporaryDirectory(prefix="charter-bits-") as directory:
        hashes: list[Mapping[str, str]] = []
        for number in ("first", "second"):
            root = Path(directory) / number
            if problem := _train(root, options):
                return Check(
                    name=BITS, ok=False, found=f"the {number} run ended: {problem}", advice=ADVICE, group="bits"
                )
            record = read_record(earlier_stage_dirs(root, STAGE)[0])
            hashes.append(record.outputs if record else {})
    where = "on a GPU" if gpus_here() else "on processors"
    return verdict(*hashes, where=where)


def verdict(first: Mapping[str, str], second: Mapping[str, str], *, where: str) -> Check:
    """Compare the hashes of what two runs have published.

    >>> verdict({"model.safetensors": "a"}, {"model.safetensors": "b"}, where="on a GPU").ok
    False
    """
    differing = sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
    if not differing and first:
        found = f"{STEPS} steps {where}, {len(first)} files with equal hashes"
        return Check(name=BITS, ok=True, found=found, group="bits")
    found = f"{STEPS} steps {where}; {', '.join(differing) or 'no file'} differ{'' if len(differing) > 1 else 's'}"
    return Check(name=BITS, ok=False, found=found, advice=ADVICE, group="bits")


def _train(root: Path, options: Sequence[str]) -> str:
    """Train the model of a template for some steps; what went wrong, in its last words."""
    steps = f"pipeline.{STAGE}.steps={STEPS}"
    changes = [part for change in (steps, *options) for part in ("--set", change)]
    for words in (
        ["init", str(root), "--template", TEMPLATE],
        ["run", "--yes", "--only", STAGE, "-C", str(root), *changes],
    ):
        try:
            done = subprocess.run(
                [sys.executable, "-m", "charter.cli.main", *words],
                capture_output=True,
                text=True,
                timeout=LONGEST_SECONDS,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "NO_COLOR": "1"},
            )
        except subprocess.TimeoutExpired:
            return f"not within {LONGEST_SECONDS:g} s"
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            return lines[-1][:300] if lines else f"exit code {done.returncode}"
    return ""
