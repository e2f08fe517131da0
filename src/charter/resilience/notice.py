"""What a warning before a preemption is worth: AWS gives 120 s, GCP 30 s (their docs), Azure 30 s (from memory)."""

from dataclasses import replace

from charter.resilience.expected_time import Interruptions

NOTICE_SUCCESS = 0.9
"""Share of preemptions whose notice is seen in time; AWS calls it best effort. Judgement."""


def notice_success(*, save_seconds: float, notice_seconds: float) -> float:
    """Share of preemptions before which one more checkpoint is written: none where a save does not fit the notice.

    >>> notice_success(save_seconds=20, notice_seconds=120), notice_success(save_seconds=60, notice_seconds=30)
    (0.9, 0.0)
    """
    return NOTICE_SUCCESS if 0 < save_seconds <= notice_seconds else 0.0


def preemption_loss_seconds(*, interval_seconds: float, save_seconds: float, success: float) -> float:
    """Mean seconds that a preemption costs in work: `(1 - p) (tau + delta)/2 + p delta`.

    p the share of preemptions before which one more save succeeds. First order: `expected_time` has the exact form.

    >>> preemption_loss_seconds(interval_seconds=1180, save_seconds=20, success=0)
    600.0
    >>> round(preemption_loss_seconds(interval_seconds=1180, save_seconds=20, success=0.9))
    78
    """
    return (1 - success) * (interval_seconds + save_seconds) / 2 + success * save_seconds


def with_notice(job: Interruptions, *, save_seconds: float, notice_seconds: float) -> Interruptions:
    """The same interruptions where a notice of so many seconds is used to save once more."""
    return replace(job, notice_success=notice_success(save_seconds=save_seconds, notice_seconds=notice_seconds))
