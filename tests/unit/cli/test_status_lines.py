"""Lines of `charter status`."""

from charter.cli.status import _remarks


def test_the_pace_of_a_failed_stage_is_not_glued_to_the_advice() -> None:
    stage = {
        "why": "step 3: the loss is not finite\n  lower learning_rate; the checkpoints are intact",
        "engine": "native",
        "actual_over_planned": {"seconds": 7.14},
    }
    assert _remarks(stage) == (
        "step 3: the loss is not finite; 7.14 x the planned time per step\n"
        "  lower learning_rate; the checkpoints are intact"
    )
