"""MaxText's lines, metrics and checkpoints as it leaves them when it is killed; the conversion of its weights."""

from dataclasses import replace

import pytest
from maxtext_case import SFT, handover

from charter.engines.maxtext.adapter import MaxTextAdapter, console_steps, metrics_steps
from charter.errors import StageError

# src/maxtext/common/metric_logger.py at e591f30, _log_training_metrics: these parts, in this order.
LINE = (
    "I0822 09:59:54.123456 139 max_logging.py:22] completed step: 6, seconds: 1.234, TFLOP/s/device: 201.500, "
    "Tokens/s/device: 6636.143, total_weights: 65536, loss: 2.345, lm_loss: 2.345, perplexity: 10.433"
)
METRICS = (
    '{"learning/loss": 2.5, "learning/grad_norm": 0.75, "learning/current_learning_rate": 1e-05, '
    '"perf/step_time_seconds": 1.5, "learning/total_weights": 65536.0, "step": 0.0, "run_name": "maxtext"}\n'
)


def test_a_step_counts_from_one():
    (step,) = console_steps([LINE + "\n"])
    assert (step.step, step.seconds, step.tokens) == (7, 1.234, 65536)
    assert step.metrics["loss"] == 2.345
    assert "seconds" not in step.metrics


def test_torn_lines_are_no_steps():
    whole = list(console_steps([LINE, LINE + ", moe_lb_loss: 0.000000"]))
    assert len(whole) == 2
    cuts = [cut for cut in range(1, len(LINE)) if list(console_steps([LINE[:cut]]))]
    assert cuts == []


def test_steps_beside_a_profile_have_no_seconds():
    (step,) = console_steps(
        [LINE.replace("completed step: 6, seconds: 1.234", "completed profiler activation/deactivation step: 6")]
    )
    assert (step.step, step.seconds) == (7, None)


def test_metrics_of_several_hosts_are_one_step_each(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert list(metrics_steps(path)) == []
    path.write_text(
        METRICS + METRICS.replace("2.5", "2.25") + METRICS.replace('"step": 0.0', '"step": 1.0') + METRICS[:40]
    )
    first, second = metrics_steps(path)
    assert (first.step, first.metrics["loss"], first.seconds) == (1, 2.25, 1.5)
    assert first.metrics["gradient_norm"] == 0.75
    assert second.step == 2


def save(work, last, name=None):
    directory = work / "maxtext/checkpoints" / (name or str(last)) / "items"
    directory.mkdir(parents=True)
    (directory / "manifest.ocdbt").write_text(f"{last}")


def test_checkpoints_count_under_their_final_name(tmp_path):
    save(tmp_path, 99)
    save(tmp_path, 1000)
    save(tmp_path, 1100, "1100.orbax-checkpoint-tmp-7")
    (tmp_path / "maxtext/checkpoints/5").mkdir()
    assert [item.step for item in MaxTextAdapter().checkpoints(tmp_path)] == [100, 1001]
    assert MaxTextAdapter().final_step(tmp_path) == 1001


def test_placed_checkpoint_is_the_one_it_goes_on_from(tmp_path):
    work = tmp_path / "work"
    save(work, 99)
    save(work, 199)
    first, _ = MaxTextAdapter().checkpoints(work)
    saved = tmp_path / "saved"
    first.path.rename(saved)
    (saved / "manifest.json").write_text("{}")
    MaxTextAdapter().place(saved, first.step, work)
    assert [path.name for path in (work / "maxtext/checkpoints").iterdir()] == ["99"]
    assert [path.name for path in (work / "maxtext/checkpoints/99").iterdir()] == ["items"]


def test_newest_checkpoint_is_converted_by_its_own_script(tmp_path):
    first, item = tmp_path / "first", handover(SFT)
    first.mkdir()
    (first / "config.json").write_text("{}")
    item = replace(item, paths=replace(item.paths, models={"init": str(first)}))
    with pytest.raises(StageError, match="no whole checkpoint"):
        MaxTextAdapter().convert(tmp_path, item, tmp_path / "model")
    save(tmp_path, 99)
    save(tmp_path, 199)
    fake = tmp_path / "python"
    fake.write_text(
        '#!/bin/sh\nfor word in "$@"; do case $word in base_output_directory=*) out=${word#*=};; esac; done\n'
        'mkdir -p "$out" && echo "$@" > "$out/model.safetensors"\n'
    )
    fake.chmod(0o755)
    facts = MaxTextAdapter(python=str(fake)).convert(tmp_path, item, tmp_path / "model")
    assert facts["step"] == 200
    words = (tmp_path / "model/model.safetensors").read_text().split()
    assert words[:2] == ["-m", "maxtext.checkpoint_conversion.to_huggingface"]
    assert {"model_name=llama3.1-8b", f"load_parameters_path={tmp_path}/maxtext/checkpoints/199/items"} <= set(words)
    fake.write_text("#!/bin/sh\necho no jax >&2; exit 1\n")
    with pytest.raises(StageError, match=r"ended with 1:\nno jax"):
        MaxTextAdapter(python=str(fake)).convert(tmp_path, item, tmp_path / "again")
