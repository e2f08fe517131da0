"""Lines of Megatron-LM in the very format that its code writes."""

import pytest

from charter.engines.megatron.adapter import console_steps

# megatron/training/training.py at d98e8a6, training_log: these formats, in this order.
LINE = (
    " [{}]".format("2026-11-22 13:40:01.123456")
    + f" iteration {10:8d}/{100:8d} |"
    + f" consumed samples: {640:12d} |"
    + f" elapsed time per iteration (ms): {1234.56:.1f} |"
    + f" throughput per GPU (TFLOP/s/GPU): {412.3:.1f} |"
    + f" learning rate: {1e-5:.6E} |"
    + f" global batch size: {64:5d} |"
    + " {}: {:.6E} |".format("lm loss", 2.5)
    + f" loss scale: {1.0:.1f} |"
    + f" grad norm: {0.75:.3f} |"
    + f" number of skipped iterations: {0:3d} |"
    + f" number of nan iterations: {0:3d} |"
)


def test_an_iteration_is_read():
    (step,) = console_steps([LINE + "\n"])
    assert (step.step, step.seconds) == (10, 1.2346)
    assert step.metrics == {
        "throughput per GPU (TFLOP/s/GPU)": 412.3,
        "learning_rate": 1e-5,
        "loss": 2.5,
        "loss scale": 1.0,
        "gradient_norm": 0.75,
        "number of skipped iterations": 0.0,
        "number of nan iterations": 0.0,
    }
    assert step.time is None, "its time of day has no zone"


def test_torchrun_may_put_a_rank_before_the_line():
    (step,) = console_steps([f"[rank15]:{LINE}"])
    assert step.step == 10


def test_samples_that_were_skipped_do_not_matter():
    line = LINE.replace(" elapsed", " skipped samples:            8 | elapsed")
    (step,) = console_steps([line])
    assert "skipped samples" not in step.metrics


def test_what_is_no_number_is_left_out():
    (step,) = console_steps(
        [LINE.replace("7.500000E-01", "nan").replace("2.500000E+00", "nan").replace("0.750", "nan")]
    )
    assert not {"loss", "gradient_norm"} & set(step.metrics)


def test_a_torn_line_is_no_step():
    assert [cut for cut in range(1, len(LINE)) if list(console_steps([LINE[:-cut]]))] == []


@pytest.mark.parametrize(
    "line",
    [
        "  successfully saved checkpoint from iteration      10 to /stage/checkpoints [ t 1/4, p 1/2 ]",
        " validation loss at iteration 10 | lm loss value: 2.500000E+00 | lm loss PPL: 1.218249E+01 |",
        "training ...",
        "",
    ],
)
def test_other_lines_are_left_out(line):
    assert list(console_steps([line])) == []
