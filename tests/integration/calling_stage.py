"""A small real stage that pays for its answers: every step is one call, billed by a provider that keeps a log.

CALLING_LOG=FILE     the provider's log: request id and cost in USD, one line per billed call
CALLING_KILL=b:3     SIGKILL in stage b, in its first attempt, when call 3 is billed and not yet settled
"""

import json
import os
import signal
import time
import uuid
from pathlib import Path

from gate import hold, take_time

from charter.artifacts.faults import ATTEMPT
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.ledger.calls import CallStore, NewCall, Settlement

STEPS = 6
MICRO_USD, MOST_MICRO_USD = 400_000, 1_000_000
ENDPOINT = "http://judge:8000/v1"


def run(stage: StageDir) -> None:
    """Ask as many questions as there are steps; what was answered before is not asked again."""
    job = stage.job
    where = job.ledger or stage.path / "calls.sqlite"
    with CallStore.open(where, run=job.run, stage=job.stage, fingerprint=job.fingerprint) as store:
        for step in range(1, STEPS + 1):
            hold(stage, step - 1)
            if stage.should_stop():
                return
            take_time()
            _ask(store, job.stage, step)
            stage.report(step, STEPS, "steps", {}, {"records": 1})
        answers = store.answers([f"question {step}" for step in range(1, STEPS + 1)])
    stage.publish_outputs(lambda out: _publish(out, answers), step=STEPS, target_step=STEPS)


def _ask(store: CallStore, stage: str, step: int) -> None:
    key = f"question {step}"
    if store.answers([key]):
        return
    call_id = uuid.uuid4().hex
    store.intend(
        [
            NewCall(
                call_id=call_id,
                key=key,
                model="judge",
                endpoint=ENDPOINT,
                attempt=1,
                at=time.time(),
                most_micro_usd=MOST_MICRO_USD,
            )
        ]
    )
    with open(os.environ["CALLING_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps({"request_id": call_id, "cost_usd": MICRO_USD / 1e6}) + "\n")
    if os.environ.get("CALLING_KILL") == f"{stage}:{step}" and os.environ.get(ATTEMPT, "1") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    settled = Settlement(
        call_id=call_id,
        outcome="answered",
        at=time.time(),
        answer=json.dumps(f"answer {step}"),
        prompt_tokens=100,
        cached_tokens=60,
        completion_tokens=10,
        micro_usd=MICRO_USD,
    )
    store.settle([settled])


def _publish(out: Path, answers: dict[str, str]) -> None:
    (out / "model").mkdir()
    (out / "model" / "value.txt").write_text(json.dumps(answers, sort_keys=True))
    (out / "model" / "config.json").write_text("{}")


if __name__ == "__main__":
    stage_main(run)
