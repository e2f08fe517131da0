"""A flipped bit or a missing end in any file of a stage is noticed, and a start then falls back, makes anew or refuses.

The figure is 100 %: every file kind is hit at random places, with its time of change put back as bit rot would.
"""

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from bench import KILLED, KINDS, result_of, wait
from layouts import in_turn
from results import Case, record

from charter.artifacts.checkpoints import damage
from charter.artifacts.job import read_job
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.whole_dir import read_sealed
from charter.errors import DataError

pytestmark = [pytest.mark.torch, pytest.mark.slow]
FLIPS = int(os.environ.get("CHARTER_CHAOS_FLIPS", "10"))
SEED = int(os.environ.get("CHARTER_CHAOS_SEED", "1"))
SPEC = replace(KINDS["sft"].spec, steps=2)


@pytest.fixture(scope="module")
def finished(bench):
    """A finished stage with two checkpoints, its outputs, its cached tokens, and a roll-back that changed nothing."""
    from charter.train.loop import RollBack, write_roll_backs

    directory = bench.stage("sft", "flips-whole", spec=SPEC)
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    write_roll_backs(directory, (RollBack(diverged_at=9, resume_from=9, skip_steps=1),))
    return directory


@pytest.fixture
def nearly(bench):
    """(what) -> a stage that was killed before it published, to be damaged and started again."""

    def make(name: str):
        directory = bench.stage("sft", f"flips-{name}", spec=SPEC)
        assert bench.finish(directory, CHARTER_KILL="sft:outputs:2:before") == KILLED
        return directory

    return make


def fails(check) -> bool:
    try:
        return check() is not None
    except DataError:
        return True


def notices(directory: Path, path: Path, key: str) -> bool:
    """Whether the check that a start makes of a file finds something wrong; `key` is that of the cached tokens."""
    from charter.train import token_data
    from charter.train.loop import read_roll_backs

    first = path.relative_to(directory).parts[0]
    if first == "state":
        return fails(lambda: damage(path.parent))
    if first.startswith("tokens-"):
        return fails(lambda: token_data._damage(path.parent, key))
    if first == "outputs":
        return fails(lambda: damaged_output(directory, read_record(directory), thorough=True))
    check = {"job.json": read_job, "record.json": read_record, "roll_backs.json": read_roll_backs}[first]
    return raises(lambda: check(directory))


def raises(read) -> bool:
    try:
        read()
    except DataError:
        return True
    return False


def sealed_files(directory: Path) -> list[Path]:
    """Every file that a later start depends on."""
    folders = [path for path in directory.iterdir() if path.name in ("state", "outputs") or "tokens-" in path.name]
    single = [directory / name for name in ("job.json", "record.json", "roll_backs.json")]
    return sorted(single + [path for folder in folders for path in folder.rglob("*") if path.is_file()])


def harm(path: Path, draws: random.Random, *, cut: bool) -> str:
    """Flip one bit, or cut the end off; the time of change stays."""
    whole, times = path.read_bytes(), path.stat()
    if cut:
        size = draws.choice([0, len(whole) - 1, draws.randrange(len(whole))])
        path.write_bytes(whole[:size])
        told = f"cut to {size}"
    else:
        bit = draws.randrange(len(whole) * 8)
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        told = f"bit {bit}"
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return told


def test_every_damage_to_every_file_is_noticed(finished):
    draws, missed, tried = random.Random(f"{SEED}-flips"), [], 0
    files = sealed_files(finished)
    (tokens,) = finished.glob("tokens-*/manifest.json")
    key = read_sealed(tokens)["key"]
    assert not any(notices(finished, path, key) for path in files)
    for path in files:
        whole = path.read_bytes()
        for number in range(FLIPS if whole else 0):
            told = harm(path, draws, cut=number % 5 == 4)
            tried += 1
            missed += [] if notices(finished, path, key) else [f"{path.relative_to(finished)}: {told}"]
            path.write_bytes(whole)
    record(
        Case(
            test="flips", kind="sft", layout="1", kills=tried, runs=0,
            mismatches=len(missed), lost=0, doubled=0, seed=SEED,
        )
    )  # fmt: skip
    names = {path.name for path in files}
    assert names >= {".metadata", "state.json", "buffers.safetensors", "manifest.json", "tokens.bin", "offsets.bin"}
    assert names >= {"__0_0.distcp", "answers.bin", "model.safetensors", "record.json", "job.json", "roll_backs.json"}
    assert tried >= 200
    assert missed == []


KIND_OF_FILE = {
    "newest weights": "state/step-00000002/__0_0.distcp",
    "newest index": "state/step-00000002/.metadata",
    "newest values": "state/step-00000002/state.json",
    "newest manifest": "state/step-00000002/manifest.json",
    "both": "state/*/__0_0.distcp",
    "tokens": "tokens-*/tokens.bin",
    "manifest of tokens": "tokens-*/manifest.json",
}


@pytest.mark.parametrize("what", in_turn(list(KIND_OF_FILE)))
def test_a_start_falls_back_or_makes_anew_and_the_bits_are_the_same(bench, nearly, finished, what):
    directory, draws = nearly("start"), random.Random(f"{SEED}-{what}")
    harmed = list(directory.glob(KIND_OF_FILE[what]))
    assert harmed
    for path in harmed:
        harm(path, draws, cut=what == "newest values")
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    assert result_of(directory) == result_of(finished)
    assert "damaged" in (directory / "log.txt").read_text()
    asides = [path for path in [*directory.iterdir(), *(directory / "state").iterdir()] if ".damaged-1" in path.name]
    assert len(asides) == len(harmed)


@pytest.mark.parametrize("name", in_turn(["job.json", "roll_backs.json"]))
def test_a_start_refuses_what_it_cannot_make_anew_and_names_it(bench, nearly, finished, name):
    directory, draws = nearly("refused"), random.Random(f"{SEED}-{name}")
    if name == "roll_backs.json":
        shutil.copy(finished / name, directory / name)
    whole = (directory / name).read_bytes()
    job = (directory / "job.json").read_bytes()
    harm(directory / name, draws, cut=False)
    assert wait(bench.start(directory, job_text=job)) not in (0, KILLED)
    assert name in (directory / "failure.json").read_text()
    (directory / name).write_bytes(whole)
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    assert result_of(directory) == result_of(finished)
