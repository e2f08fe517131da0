"""Rendered files run for real, and what `Resume` says of them: stopped, gone on, compared by the hash of the weights.

SFT, preference models, DPO and KTO under Charter are in test_run*.py; here are GRPO and RLOO, SFT on two processes, and
the loss of KTO beside Charter's.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from huggingface_case import handover

from charter.engines import render
from charter.engines.common.request import HandoverPaths
from charter.spec.layout import Layout
from charter.train.losses import kto_loss

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".engines/huggingface/bin/python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="tools/engine_environment.sh huggingface makes it")
BATCH = 8
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "PYTHONWARNINGS": "ignore"}
ROLLOUTS = {
    "max_new_tokens": 8,
    "episodes": 6 * 2 * BATCH,
    "rollout_batch": 2 * BATCH,
    "minibatch": BATCH,
    "ppo_epochs": 2,
    "checkpoint_every": 2,
}
ONE_UPDATE = {"episodes": 6 * BATCH, "rollout_batch": BATCH, "ppo_epochs": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    environment = {**os.environ, **ENVIRONMENT}
    subprocess.run([PYTHON, Path(__file__).with_name("tiny_models.py")], cwd=directory, env=environment, check=True)
    return directory


def trained(work, models, kind, *, layout, resume_from=None, **changes):
    """The hash of the final weights of a run, begun or gone on in `work`."""
    where = {"init": f"{models}/base", "policy": f"{models}/base", "reward": f"{models}/reward"}
    data = {role: f"{models}/{role}.jsonl" for role in ("data", "prompts")}
    paths = HandoverPaths(work=str(work), models=where, data=data, resume_from=resume_from)
    common = {"dtype": "fp32", "learning_rate": 1e-3, "accelerator": "cpu", "paths": paths}
    run = render(dataclasses.replace(handover("trl", kind, layout=layout, **common, **changes), target_steps=6))
    for name, text in run.files.items():
        (work / name).write_text(text)
    command = [str(PYTHON) if word == "python" else word for word in run.command]
    environment = {**os.environ, **ENVIRONMENT, **run.environment}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    steps = done.stdout.count("'grad_norm'")
    return hashlib.sha256((work / "output/model.safetensors").read_bytes()).hexdigest(), steps, run.resume.guarantee


@pytest.mark.parametrize(
    ("kind", "processes", "updates", "changes"),
    [
        ("grpo", 1, 4, ROLLOUTS),
        ("rloo", 1, 1, {**ROLLOUTS, **ONE_UPDATE}),
        ("sft", 2, 1, {"global_batch": BATCH, "seq_len": 64, "checkpoint_every": 2}),
    ],
)
def test_a_run_goes_on_to_the_same_weights(tmp_path, models, kind, processes, updates, changes):
    layout = Layout(data=processes, micro_batch=2, accumulation=BATCH // (2 * processes))
    weights, steps, guarantee = trained(tmp_path, models, kind, layout=layout, **changes)
    assert steps == 6 * updates
    output = tmp_path / "output"
    (output / "model.safetensors").unlink()
    shutil.rmtree(output / f"checkpoint-{6 * updates}")
    before = str(output / f"checkpoint-{4 * updates}")
    again, steps, _ = trained(tmp_path, models, kind, layout=layout, resume_from=before, **changes)
    assert steps == 2 * updates
    assert again == weights
    assert guarantee == ("bit_exact" if processes == 1 else "same_data_order")


def test_the_loss_of_kto_is_charters(tmp_path, models):
    """Its reference point too: the mean over the batch of answers to other prompts, each answer being met once."""
    share, beta, pairs = 0.125, 0.3, 4
    said = {True: "ab", False: "cdefg"}
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{number}?"}],
            "completion": answer(f"{said[label]}{number}"),
            "label": label,
        }
        for label in said
        for number in range(pairs)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = HandoverPaths(work=".", models={"init": f"{models}/base"}, data={"data": "rows.jsonl"})
    layout = Layout(micro_batch=2 * pairs)
    common = {"global_batch": pairs, "dtype": "fp32", "accelerator": "cpu", "seq_len": 128, "paths": paths}
    run = render(handover("trl", "kto", layout=layout, beta=beta, label_smoothing=share, **common))
    (tmp_path / "kto.yaml").write_text(run.files["kto.yaml"])
    done = subprocess.run(
        [PYTHON, Path(__file__).with_name("probe_kto.py")], cwd=tmp_path, env={**os.environ, **ENVIRONMENT},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    read = json.loads(done.stdout.strip().splitlines()[-1])
    assert read["label"] == [row["label"] for row in rows]
    point = torch.tensor(read["others"]).mean()
    assert point > 0.05, "else it is cut at 0"
    assert read["point"] == pytest.approx(point.item(), abs=1e-4)
    assert len({round(value, 3) for value in (*read["nats"], *read["others"])}) == 4 * pairs
    chosen, rejected = torch.tensor(read["nats"]).view(2, pairs)
    zero = torch.zeros(pairs)
    ours = kto_loss(
        chosen, rejected, zero, zero, torch.ones(pairs), beta=beta, reference_point=point.clamp_min(0),
        label_smoothing=share,
    )  # fmt: skip
    assert read["loss"] == pytest.approx(ours.loss_B.mean().item() - share, abs=1e-5)


def answer(text):
    return [{"role": "assistant", "content": text}]
