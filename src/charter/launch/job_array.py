"""An array of tasks, watched: each makes its share of a stage's records, and whichever is last publishes them."""

import time
from collections.abc import Sequence

from charter.artifacts.job_files import NodeRecord
from charter.artifacts.record import RECORD_FILE
from charter.artifacts.stage_process import INTERRUPTED_EXIT
from charter.launch.job_handle import FILES_SECONDS, LOOK_SECONDS, LOST, JobHandle

SECONDS_PER_TASK = 0.005
"""The files of an array are looked at so much less often for every task that it has."""


class ArrayHandle(JobHandle):
    """An array of tasks, each a process that makes its share of the records; the first failure is the array's."""

    @property
    def watched(self) -> Sequence[int]:
        """The processes of the tasks that run now."""
        return [record.first_rank for record in self._records.values() if record.first_pid and record.ended_at is None]

    @property
    def _first(self) -> NodeRecord | None:
        return next((record for record in self._records.values() if record.first_pid), None)

    def _look_seconds(self) -> float:
        return max(LOOK_SECONDS, SECONDS_PER_TASK * len(self._live.submission.shards))

    def _busy_seconds(self) -> float:
        now = time.time()
        return sum((record.ended_at or now) - record.started_at for record in self._records.values())

    def _read(self) -> None:
        for record in self._live.files.nodes_again(self._records):
            self._records[record.place] = record

    def _decide(self, now: float) -> None:
        state, records = self._live.state, [*self._records.values()]
        bad = next((record for record in records if record.exit_code), None)
        all_ended = len(records) == len(self._live.submission.shards) and all(it.ended_at is not None for it in records)
        if not (all_ended and bad is None) and state.phase != "ended":
            return
        self._ended_at = now if self._ended_at is None else self._ended_at
        if bad is None and all_ended and (self._live.stage_dir / RECORD_FILE).exists():
            self._end(0, "")
        elif now - self._ended_at > FILES_SECONDS:
            if bad is not None:
                self._failed_rank = bad.failed_rank
            self._note = "" if bad is not None else "its tasks have ended, and none of them has published"
            code = INTERRUPTED_EXIT if self._control.stop else LOST if bad is None else bad.exit_code or LOST
            self._end(code, "cancelled" if self._control.kill else state.cause if bad is not None else "node_lost")
