"""Lines of `charter status`."""

from charter.cli.status import _remarks


def test_what_was_measured_is_not_glued_to_the_advice() -> None:
    stage = {
        "state": "failed",
        "why": "step 3: the loss is not finite\n  lower learning_rate; the checkpoints are intact",
        "engine": "native",
        "actual_over_planned": {"seconds": 7.14, "bytes": 0.9},
    }
    assert _remarks(stage) == (
        "step 3: the loss is not finite; 0.90 x the planned memory of tensors\n"
        "  lower learning_rate; the checkpoints are intact"
    )


def test_the_pace_of_the_last_steps_is_told_while_a_stage_runs() -> None:
    stage = {"why": "step 5", "engine": "native", "actual_over_planned": {"seconds": 1.2}}
    assert _remarks({**stage, "state": "running"}) == "step 5; 1.20 x the planned time per step now"
    for state in ("done", "failed", "interrupted"):
        assert _remarks({**stage, "state": state}) == "step 5"
