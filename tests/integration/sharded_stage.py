"""A stage that makes records without torch: a hash for every prompt, through the machinery of the real ones."""

import hashlib
from collections.abc import Generator, Sequence
from concurrent.futures import Future

from gate import take_time

from charter.artifacts import faults
from charter.artifacts.group import rank_of_process
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.data.dataset import Prompt, read_prompts
from charter.feedback.asking import Ask, Reply
from charter.feedback.records import BatchResult, in_batches, make_records


class Nobody:
    """Answers nothing, since nothing is asked."""

    batches_at_once = 1

    def submit(self, asks: Sequence[Ask]) -> "Future[list[Reply]]":
        done: Future[list[Reply]] = Future()
        done.set_result([])
        return done

    def confirm(self) -> None:
        pass

    def close(self) -> None:
        pass


def run(stage: StageDir) -> None:
    """One record for every prompt; `COUNTING_SECONDS_PER_STEP` each."""
    source = stage.job.only("prompts")
    prompts = read_prompts(source.location(), source.data)
    batches = in_batches(prompts, stage.job.spec.rollout_batch)  # type: ignore[attr-defined]

    def make(items: Sequence[Prompt]) -> Generator[Sequence[Ask], list[Reply], BatchResult]:
        take_time()
        faults.boundary(stage.job.stage, "make", rank_of_process(), "before")
        yield []
        return BatchResult(
            records=[{"id": item.id, "hash": hashlib.sha256(str(item).encode()).hexdigest()} for item in items]
        )

    make_records(stage, batches, make, Nobody(), summarise=lambda totals: {"made": totals["records"]})


if __name__ == "__main__":
    stage_main(run)
