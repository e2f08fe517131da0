from types import SimpleNamespace

import pytest

from charter.artifacts.group import BEAT_EVERY_SECONDS, SAVE, Heartbeat, Sign, read_sign
from charter.run.attempt import RunningAttempt
from charter.run.watches import GAPS, LEAST_SECONDS, LONGEST_LOOK_SECONDS, START_SECONDS, HangWatch, read_signs
from charter.spec.ppo_stage import VLLM_SAMPLE_SECONDS, VLLM_SYNC_SECONDS, PpoStage


class Clock:
    """Looks once a second at what the processes say."""

    def __init__(self, watch, ranks=1):
        self.watch, self.now = watch, 0.0
        self.signs = dict.fromkeys(range(ranks), (None, 0))

    def beat(self, rank=0, what="step"):
        sign = self.signs[rank][0] or Sign(0, 0, "")
        slow = what in ("start", "save", "publish")
        self.signs[rank] = (Sign(sign.count + 1, sign.parts + (not slow), what), self.signs[rank][1])

    def silent(self, seconds):
        """The first hang within so many seconds, and after how many."""
        for second in range(1, int(seconds) + 1):
            self.now += 1
            if (hang := self.watch.look(self.now, self.signs)) is not None:
                return hang, second
        return None, seconds

    def working(self, watch=None, gap=1, beats=4, ranks=1):
        for _ in range(beats):
            for rank in range(ranks):
                self.beat(rank)
            assert self.silent(gap)[0] is None
        return self


def test_quick_steps_have_a_minute():
    hang, after = Clock(HangWatch(limit_seconds=None)).working().silent(1000)
    assert hang.deadline_seconds == LEAST_SECONDS
    assert LEAST_SECONDS - 2 <= after <= LEAST_SECONDS + 2


def test_slow_steps_have_ten_times_their_own_pace():
    hang, _ = Clock(HangWatch(limit_seconds=None)).working(gap=50).silent(1000)
    assert hang.deadline_seconds == pytest.approx(GAPS * 50, rel=0.03)


def test_a_limit_of_the_file_replaces_the_pace_but_not_the_time_to_start():
    hang, after = Clock(HangWatch(limit_seconds=5)).working().silent(100)
    assert (hang.deadline_seconds, after) == (5, 6)
    assert Clock(HangWatch(limit_seconds=5)).silent(START_SECONDS - 1)[0] is None


def test_a_first_rollout_has_the_time_that_vllm_has():
    for generator, allowed in (("native", START_SECONDS), ("vllm", VLLM_SYNC_SECONDS + VLLM_SAMPLE_SECONDS)):
        spec = PpoStage(policy="base", reward="pm", prompts=("prompts",), episodes=64, generator=generator)
        clock = Clock(HangWatch.of(spec))
        clock.beat()
        hang, after = clock.silent(2 * allowed)
        assert (hang.deadline_seconds, after) == (allowed, pytest.approx(allowed, abs=2))
        clock = Clock(HangWatch.of(spec)).working()
        assert clock.silent(2 * LEAST_SECONDS)[0].deadline_seconds == LEAST_SECONDS


def test_before_the_first_part_is_done_there_is_time_to_load_and_compile():
    clock = Clock(HangWatch(limit_seconds=None))
    clock.beat(what="start")
    clock.silent(100)
    clock.beat()
    hang, after = clock.silent(2 * START_SECONDS)
    assert hang.deadline_seconds == START_SECONDS
    assert after == pytest.approx(START_SECONDS, abs=2)


def test_saving_takes_its_time_and_is_no_pace():
    clock = Clock(HangWatch(limit_seconds=None)).working()
    clock.beat(what=SAVE)
    assert clock.silent(300)[0] is None
    clock.beat()
    hang, _ = clock.silent(1000)
    assert hang.deadline_seconds == LEAST_SECONDS


def test_while_one_saves_the_others_may_wait():
    clock = Clock(HangWatch(limit_seconds=None), ranks=2).working(ranks=2)
    clock.beat(0, SAVE)
    assert clock.silent(300)[0] is None


def test_the_process_that_is_silent_is_named():
    clock = Clock(HangWatch(limit_seconds=5), ranks=3).working(ranks=3)
    for _ in range(3):
        clock.beat(0)
        clock.beat(2)
        assert clock.silent(1)[0] is None
    hang, _ = clock.silent(10)
    assert hang.rank == 1
    assert "process 1 of 3 gave no sign of life for" in hang.words(3)
    assert "(last at step)" in hang.words(3)


def test_a_process_that_never_beats_is_not_watched_beside_rank_0():
    clock = Clock(HangWatch(limit_seconds=5), ranks=2)
    for _ in range(50):
        clock.beat(0)
        assert clock.silent(1)[0] is None


def test_while_the_machine_sleeps_no_time_passes():
    clock = Clock(HangWatch(limit_seconds=5)).working()
    clock.now += 3600
    assert clock.silent(int(5 - LONGEST_LOOK_SECONDS) - 1)[0] is None
    assert clock.silent(5)[0] is not None


def test_a_line_of_metrics_is_a_sign_of_life(tmp_path):
    assert read_signs(tmp_path, range(2)) == {0: (None, 0), 1: (None, 0)}
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert read_signs(tmp_path, range(2)) == {0: (None, 3), 1: (None, 0)}


def test_a_heartbeat_is_written_at_most_every_quarter_second_but_what_is_slow_at_once(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("charter.artifacts.group.time.monotonic", lambda: now[0])
    heart = Heartbeat(tmp_path, 1)
    heart.beat("step 1")
    heart.beat("step 2")
    assert read_sign(tmp_path, 1) == Sign(1, 1, "step 1")
    heart.beat("save")
    assert read_sign(tmp_path, 1) == Sign(3, 2, "save")
    assert read_sign(tmp_path, 1).is_slow
    heart.beat("step 3")
    assert read_sign(tmp_path, 1) == Sign(4, 3, "step 3")
    now[0] += BEAT_EVERY_SECONDS
    heart.beat("a much longer description of a step\n" * 9)
    assert read_sign(tmp_path, 1).what.startswith("a much longer")
    heart.beat("save")
    assert read_sign(tmp_path, 1) == Sign(6, 4, "save")
    assert read_sign(tmp_path, 0) is None


def test_a_token_is_a_sign_of_life_but_not_the_beginning_of_a_step(tmp_path, monkeypatch):
    """Else the first update, which takes longer than any token, would be taken for a hang."""
    now = [0.0]
    monkeypatch.setattr("charter.artifacts.group.time.monotonic", lambda: now[0])
    heart = Heartbeat(tmp_path, 0)
    heart.beat("rollout 1")
    for second in range(1, 4):
        now[0] = float(second)
        heart.alive()
    sign = read_sign(tmp_path, 0)
    assert sign is not None
    assert (sign.count, sign.parts, sign.what) == (4, 1, "rollout 1")


def test_many_processes_are_looked_at_less_often_and_still_in_time():
    watch = HangWatch(limit_seconds=None)
    watch.look(100.0, {0: (None, 0)})
    assert watch.is_due(100.3)
    assert not watch.is_due(100.9, processes=100)
    assert watch.is_due(101.1, processes=100)
    assert watch.is_due(100.1 + LONGEST_LOOK_SECONDS, processes=10_000)


def test_without_processes_no_time_passes():
    watch = HangWatch(limit_seconds=1)
    for second in range(3000):
        assert watch.look(float(second), {}) is None
    assert watch.look(3001.0, {4: (None, 0)}) is None


@pytest.mark.parametrize(
    ("where", "scheduler", "is_here"),
    [
        ("", None, True),
        ("subprocess job 1", "subprocess", True),
        ("slurm job 1", "slurm", False),
        ("slurm job 1", None, False),
    ],
)
def test_kills_of_this_machine_tell_nothing_of_a_cluster(where, scheduler, is_here):
    """On a login node somebody else's process is killed for memory; the job has lost its node all the same."""
    handle = SimpleNamespace(where=where, job=scheduler and SimpleNamespace(scheduler=scheduler))
    attempt = RunningAttempt(
        stage=None, handle=handle, number=1, ledger_id=1, first_step=0, calls=None, idle=None, started=0.0
    )
    assert attempt.is_here == is_here


def test_time_in_a_queue_does_not_count_for_the_timeout(monkeypatch):
    now = SimpleNamespace(time=lambda: 0.0, monotonic=lambda: 7200.0)
    monkeypatch.setattr("charter.run.attempt.time", now)
    stage = SimpleNamespace(spec=SimpleNamespace(timeout=3600.0))
    attempt = RunningAttempt(
        stage=stage, handle=None, number=1, ledger_id=None, first_step=0, calls=None, idle=None, started=0.0
    )
    assert not attempt.is_overdue, "it waits in the queue of its scheduler"
    attempt.ledger_id = 1
    assert attempt.is_overdue
    attempt.started = 7000.0
    assert not attempt.is_overdue
