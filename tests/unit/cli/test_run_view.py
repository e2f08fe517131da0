from charter.cli.run import PLAIN_EVERY_SECONDS, PlainView, event_line, progress_line

PROGRESS = {
    "event": "stage_progress",
    "stage": "ppo",
    "step": 30,
    "target_step": 40,
    "unit": "rollouts",
    "rate_per_second": 2.0,
    "metrics": {"reward_mean": 0.5, "kl": 1.25, "entropy": 3.0},
    "cost_usd": 0.02,
}


def test_a_line_of_progress_has_step_rate_time_left_metrics_and_cost():
    expected = "step 30/40 · 2 rollouts/s · 5.0 s left · reward_mean 0.5 · kl 1.25 · $0.02 so far"
    assert progress_line(PROGRESS) == progress_line({**PROGRESS, "cost_usd_most": 0.02}) == expected
    assert progress_line({**PROGRESS, "cost_usd_most": 0.5}) == f"{expected}, at most $0.50"


def test_what_is_not_known_yet_is_left_out():
    assert progress_line({**PROGRESS, "rate_per_second": None, "metrics": {}, "cost_usd": None}) == "step 30/40"


def test_plain_lines_come_at_most_every_ten_seconds_per_stage(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("charter.cli.run.time.monotonic", lambda: clock[0])
    lines = []
    view = PlainView(lines.append)
    view({"event": "stage_started", "stage": "ppo", "first_step": 0, "number": 1})
    for second in range(25):
        clock[0] = float(second)
        view(PROGRESS)
    assert PLAIN_EVERY_SECONDS == 10
    assert [line.split()[1] for line in lines] == ["started", "step", "step"]


def test_every_kind_of_event_has_its_line_or_none():
    assert event_line({"event": "stage_skipped", "stage": "a", "why": "outputs verified"}).endswith(
        "nothing to do: outputs verified"
    )
    assert event_line({"event": "stage_started", "stage": "a", "first_step": 4, "number": 2}).endswith(
        "started from step 4 (attempt 2)"
    )
    assert event_line({"event": "replica_note", "message": "no tags there"}).endswith("copies: no tags there")
    assert event_line({"event": "run_started", "run": "x"}) is None
