"""A stage of many records behind a served model, stopped one batch before its end, or resumed: for feedback_client.py.

python feedback_client_stage.py PORT COUNT CONCURRENCY DIR stop|resume
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from feedback_client_work import MAX_NEW_TOKENS, TOP, prompt

from charter.artifacts.batch_files import finished_batches
from charter.artifacts.job import Job, write_job
from charter.artifacts.stage_dir import StageDir
from charter.data.dataset import Turn
from charter.feedback.records import BatchResult, make_records
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.pool import EndpointPool
from charter.ledger.calls import CallStore
from charter.spec.project import Serving
from charter.spec.stage import CritiqueStage

BATCH = 64


@dataclass(frozen=True, slots=True)
class Item:
    """A prompt."""

    number: int

    @property
    def id(self) -> str:
        return f"prompt-{self.number}"


@dataclass(frozen=True)
class Batches:
    """All prompts in batches, made as they are needed."""

    count: int

    def __iter__(self) -> Iterator[Sequence[Item]]:
        for start in range(0, self.count, BATCH):
            yield [Item(number) for number in range(start, min(start + BATCH, self.count))]


class Answers:
    """Hands requests to the pool as they are."""

    batches_at_once = 4

    def __init__(self, pool: EndpointPool) -> None:
        self.submit, self.confirm, self.close = pool.submit, pool.confirm, pool.close


def make(items):
    """One label per prompt."""
    replies = yield [
        CallRequest(
            declared="m",
            model="m",
            turns=(Turn("user", prompt(item.number)),),
            max_new_tokens=MAX_NEW_TOKENS,
            top_log_probabilities=TOP,
            seed=item.number,
        )
        for item in items
    ]
    rows = [
        {"id": item.id, "text": reply.text, "log_probability": reply.log_probabilities[0].log_probability}
        for item, reply in zip(items, replies, strict=True)
    ]
    return BatchResult(records=rows, tokens=len(rows))


def main() -> None:
    """Run the stage."""
    port, count, concurrency, place, until = *map(int, sys.argv[1:4]), Path(sys.argv[4]), sys.argv[5]
    # A stage that is stopped has all batches but the last, and has published nothing.
    wanted = count - BATCH if until == "stop" else count
    path = place / "label"
    if not path.exists():
        path.mkdir()
        job = dict(run="r", stage="label", kind="critique", fingerprint="f" * 64, seed=1, keep_last=2)
        spec = CritiqueStage(policy="p", critic="p", prompts=("d",))
        write_job(path, Job(**job, spec=spec, inputs={}, constitution=None, frozen={}))
    serving = Serving(endpoint=f"http://127.0.0.1:{port}/v1", concurrency=concurrency, billed=True)
    with (
        CallStore.open(path / "calls.sqlite", run="r", stage="label", fingerprint="f") as calls,
        EndpointPool.open("judge", serving, calls) as pool,
    ):

        def stop() -> bool:
            return until == "stop" and pool.stats().answers >= wanted

        make_records(StageDir(path, should_stop=stop), Batches(wanted), make, Answers(pool), summarise=dict)
        stats = pool.stats()
    print(json.dumps({"requests": stats.requests, "stored": stats.stored, "batches": finished_batches(path)}))


if __name__ == "__main__":
    main()
