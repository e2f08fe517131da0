"""Value of a warning before a preemption: AWS gives 120 s, GCP 30 s (their docs), Azure 30 s (from memory)."""

NOTICE_SUCCESS = 0.9
"""Share of preemptions whose notice is seen in time; AWS calls it best effort. Judgement."""


def notice_success(*, save_seconds: float, notice_seconds: float) -> float:
    """Share of preemptions before which one more checkpoint is written: none where a save does not fit the notice.

    >>> notice_success(save_seconds=20, notice_seconds=120), notice_success(save_seconds=60, notice_seconds=30)
    (0.9, 0.0)
    """
    return NOTICE_SUCCESS if 0 < save_seconds <= notice_seconds else 0.0
