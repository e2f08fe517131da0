"""What OpenRLHF logs, in the very format that its code writes."""

import struct

import pytest

from charter.engines.openrlhf.adapter import console_steps, event_steps, scalars

# utils/logging_utils.py: "%(levelname)s %(asctime)s %(filename)s:%(lineno)d] %(message)s", date "%m-%d %H:%M:%S";
# trainer/ppo_trainer.py fit(): f"✨ Global step {global_step}: {log_status}".
STATUS = (
    "{'critic_loss': 0.25, 'critic_lr': 9e-06, 'policy_loss': -0.012, 'kl': 0.0021, 'reward': -1.5, 'actor_lr': 1e-06,"
    " 'actor_grad_norm': 1.25, 'ppo_clip_ratio': 0.0625, 'timing/make_experience': 3.5, 'timing/ppo_train': 6.0,"
    " 'timing/broadcast': 0.5, 'rollout/reward_mean': -1.25, 'rollout/num_samples': 512.0, 'timing/generation': 10.0,"
    " 'timing/step_total': 20.0}"
)
LINE = f"INFO 11-22 13:40:01 ppo_trainer.py:425] ✨ Global step 3: {STATUS}"


def varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def piece(field, content):
    return bytes([field << 3 | 2]) + varint(len(content)) + content


def event(tag, value, step, time):
    """As tensorboard.compat.proto writes an add_scalar."""
    summary = piece(1, piece(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
    data = b"\x09" + struct.pack("<d", time) + b"\x10" + varint(step) + piece(5, summary)
    return struct.pack("<QI", len(data), 0) + data + b"\0\0\0\0"


def first_event():
    data = b"\x09" + struct.pack("<d", 1.0) + piece(3, b"brain.Event:2")
    return struct.pack("<QI", len(data), 0) + data + b"\0\0\0\0"


def write(directory, *events, name="events.out.tfevents.1.host.9.0"):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(first_event() + b"".join(events))


def test_a_rollout_is_read_from_the_console():
    (step,) = console_steps([LINE])
    assert step.step == 3
    assert step.seconds == 20.0
    assert step.metrics["reward"] == -1.25
    assert step.metrics["learning_rate"] == 1e-6
    assert step.metrics["gradient_norm"] == 1.25
    assert step.metrics["value_loss"] == 0.25
    assert step.metrics["kl_per_token"] == 0.0021
    assert step.metrics["clip_fraction"] == 0.0625
    assert "kl" not in step.metrics, "its kl is per token, ours per answer"
    assert step.time is None


def test_names_that_ray_puts_before_a_line_do_not_matter():
    (step,) = console_steps([f"\x1b[36m(PPOTrainer pid=4711)\x1b[0m {LINE}\r\n"])
    assert step.step == 3


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-22 13:40:01 ppo_trainer.py:300] Sample: ['Global step', 1.0]",
        "Episode [1/2]:  50%|█████     | 2/4 [00:10<00:10,  5.00s/it]",
        LINE[:-20],
        "",
    ],
)
def test_other_lines_and_torn_ones_are_left_out(line):
    assert list(console_steps([line])) == []


def test_what_is_no_number_is_left_out():
    (step,) = console_steps(["✨ Global step 1: {'policy_loss': nan, 'kl': inf, 'values': 2.0, 'who': 'me'}"])
    assert step.metrics == {"values": 2.0}


def test_steps_are_read_from_tensorboard(tmp_path):
    write(
        tmp_path / "stage",
        *(
            event(f"train/{name}", value, 1, 100.0)
            for name, value in (("gpt_loss", 9.0), ("loss_mean", 2.5), ("lr", 0.5))
        ),
        event("train/grad_norm", 0.25, 1, 100.5),
        event("eval/eval gpt_loss", 7.0, 1, 101.0),
        event("train/loss_mean", 2.25, 300, 102.0),
    )
    first, second = event_steps(tmp_path)
    assert (first.step, first.time) == (1, 100.5)
    assert first.metrics == {"loss": 2.5, "learning_rate": 0.5, "gradient_norm": 0.25}
    assert (second.step, second.metrics, second.time) == (300, {"loss": 2.25}, 102.0)


def test_reward_models_and_dpo_tell_means_of_the_whole_step(tmp_path):
    names = {"loss": 9.0, "acc": 9.0, "loss_mean": 0.5, "acc_mean": 0.75, "chosen_reward": 1.0, "reject_reward": -1.0}
    write(tmp_path, *(event(f"train/{name}", value, 1, 1.0) for name, value in names.items()))
    (step,) = event_steps(tmp_path)
    assert step.metrics == {"loss": 0.5, "accuracy": 0.75, "chosen_reward": 1.0, "rejected_reward": -1.0}


def test_a_step_that_was_made_again_counts_as_it_was_last(tmp_path):
    write(tmp_path, event("train/loss_mean", 3.0, 2, 1.0), name="events.out.tfevents.1.host")
    write(tmp_path, event("train/loss_mean", 4.0, 2, 2.0), name="events.out.tfevents.2.host")
    (step,) = event_steps(tmp_path)
    assert (step.metrics["loss"], step.time) == (4.0, 2.0)


def test_a_file_torn_anywhere_is_read_up_to_there(tmp_path):
    whole = event("train/loss_mean", 1.0, 1, 1.0) + event("train/loss_mean", 2.0, 2, 1.0)
    head = len(first_event())
    for cut in range(len(whole) + 1):
        write(tmp_path, whole[:cut])
        found = [item.step for item in scalars(tmp_path)]
        assert found == [1, 2][: (cut >= len(whole) // 2) + (cut >= len(whole))], (cut, head)


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert list(event_steps(tmp_path / "none")) == []
