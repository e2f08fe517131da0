"""A prepare stage on rows given by a test, in this process; and what brute force says of the same rows."""

import json
import re
import unicodedata
from collections import defaultdict
from pathlib import Path

from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.feedback import prepare
from charter.spec.project import DataSpec
from charter.spec.stage import PrepareStage


def stage_of(path: Path, data, held_out=(), *, specs=None, should_stop=lambda: False, **fields) -> StageDir:
    """A stage directory whose data sets are `data[0]`, `data[1]`, ...: lists of rows, or texts of a whole file."""
    if not (path / "job.json").exists():
        path.mkdir(parents=True, exist_ok=True)
        inputs = {
            "data": tuple(_input(path, "data", n, rows, specs) for n, rows in enumerate(data)),
            "held_out": tuple(_input(path, "held_out", n, rows, None) for n, rows in enumerate(held_out)),
        }
        names = {role: tuple(item.name for item in items) for role, items in inputs.items()}
        spec = PrepareStage(**names, **fields)
        job = Job(
            run="r",
            stage="clean",
            kind="prepare",
            fingerprint="f" * 64,
            seed=1,
            spec=spec,
            inputs=inputs,
            constitution=None,
            frozen={},
            keep_last=2,
        )
        write_job(path, job)
    return StageDir(path, should_stop=should_stop)


def _input(path: Path, role: str, number: int, rows, specs) -> JobInput:
    file = path.parent / f"{path.name}-{role}-{number}.jsonl"
    text = rows if isinstance(rows, str) else "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.write_text(text, encoding="utf-8")
    spec = (specs or {}).get(number) or DataSpec(path=str(file))
    return JobInput(name=f"{role}{number}", role=role, source="data", path=str(file), fingerprint="d" * 64, data=spec)


def prepared(path: Path, data, held_out=(), **fields):
    """The kept rows, the rejected ones and the summary."""
    stage = stage_of(path, data, held_out, **fields)
    prepare.run(stage)
    return results(stage.outputs)


def results(outputs: Path):
    """The kept rows, the rejected ones and the summary of finished outputs."""
    summary = json.loads((outputs / "summary.json").read_text())
    return _rows(outputs / "records.jsonl"), _rows(outputs / "rejected.jsonl"), summary


def _rows(path: Path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def brute_words(text: str) -> list[str]:
    """Words without the hashes of the product, for texts in Latin letters."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def brute_runs(texts, length=5) -> set:
    """Every run of words of every text, as tuples."""
    found = set()
    for part, text in enumerate(texts):
        words = brute_words(text)
        found |= {(part, *words[at : at + length]) for at in range(max(1, len(words) - length + 1))}
    return found


def brute_similar(rows: list[set], least: float):
    """All pairs (earlier, later) with their exact Jaccard similarity, where it is at least `least`."""
    holders, found = defaultdict(list), {}
    for later, runs in enumerate(rows):
        shared = defaultdict(int)
        for run in runs:
            for earlier in holders[run]:
                shared[earlier] += 1
            holders[run].append(later)
        for earlier, common in shared.items():
            similarity = common / (len(runs) + len(rows[earlier]) - common)
            if similarity >= least:
                found[earlier, later] = similarity
    return found
