"""Every rendered file, read by the classes of TRL, Accelerate and DeepSpeed in their own environment."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from huggingface_case import KINDS, every_layout, handover

from charter.engines import render
from charter.spec.layout import Adapter
from charter.spec.rewards import Reward
from charter.train.schedule import learning_rate_factor

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".engines/huggingface/bin/python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="tools/engine_environment.sh huggingface makes it")
CHANGES = {
    "sft": [
        {"schedule": "linear", "min_learning_rate_ratio": 0.25, "warmup_steps": 3},
        {"schedule": "constant"},
        {"warmup_steps": 5},
        {"adapter": Adapter(rank=8, alpha=16)},
        {"adapter": Adapter(rank=8, base_bits=4), "optimizer": "adamw_8bit"},
        {"adapter": Adapter(rank=8, base_bits=8)},
    ],
    "preference_model": [{"adapter": Adapter(rank=4)}, {"center_weight": 0.01, "use_margin": True}],
    "dpo": [{"beta": 0.3, "learning_rate": 5e-7}],
    "kto": [{"beta": 0.3, "label_smoothing": 0.125}],
    "grpo": [
        {"min_new_tokens": 4, "entropy_weight": 0.01},
        {"loss_aggregation": "sequence"},
        {"generator": "vllm", "mismatch_clip": 2.0},
        {"rollout_batch": 64, "ppo_epochs": 2},
        {"reward": None, "rewards": (Reward(name="right", kind="function", call="charter:number"),)},
    ],
    "rloo": [{"whiten_advantages": False, "min_new_tokens": 2, "generator": "vllm"}],
}


def asked(cases):
    """What the engine's classes say of each case."""
    question = [
        {
            "directory": str(directory),
            "script": next(path.stem for path in directory.iterdir() if path.stem in FILES),
            "command": list(run.command),
            "environment": dict(run.environment),
        }
        for directory, run in cases
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    probe = Path(__file__).with_name("probe_configs.py")
    done = subprocess.run(
        [PYTHON, "-W", "ignore", probe],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def written(directory, run):
    directory.mkdir(parents=True)
    for name, text in run.files.items():
        (directory / name).write_text(text)
    return directory, run


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Each case with what it asked for and what the engines read."""
    root, cases = tmp_path_factory.mktemp("configs"), {}
    for kind in KINDS:
        for engine, label, how in every_layout(kind):
            cases[f"{engine} {kind} {label}"] = handover(engine, kind, **how)
        for number, changes in enumerate(CHANGES.get(kind, [])):
            cases[f"trl {kind} change {number}"] = handover("trl", kind, **changes)
    runs = {name: render(asked_for) for name, asked_for in cases.items()}
    said = asked([written(root / name.replace(" ", "-"), run) for name, run in runs.items()])
    return {name: (cases[name], runs[name], found) for name, found in zip(cases, said, strict=True)}


def test_all_are_accepted(answers):
    assert len(answers) > 60
    assert {name: found["error"] for name, (_, _, found) in answers.items() if "error" in found} == {}


def test_trl_holds_what_was_written(answers):
    """The parser's objects have every value of the file, up to what TRL itself makes of a list of one."""
    for name, (_, run, found) in answers.items():
        settings = yaml.safe_load(next(text for file, text in run.files.items() if file.split(".")[0] in FILES))
        settings |= {"report_to": []}
        settings |= {"lora_target_modules": "all-linear"} if "lora_target_modules" in settings else {}
        for key, value in settings.items():
            if key == "datasets":
                assert [{k: v for k, v in entry.items() if v is not None} for entry in found["trainer"][key]] == value
            else:
                assert found["trainer"][key] == value, (name, key)


FILES = ("sft", "reward", "dpo", "kto", "grpo", "rloo")


def test_rates_are_charters_own_after_the_warm_up(answers):
    """In a warm-up of w updates TRL is one update behind: s / w against (s + 1) / w."""
    seen = set()
    for name, (asked_for, _, found) in answers.items():
        stage, rates = asked_for.stage, found["rates"]
        if stage.kind == "ppo":
            continue
        assert len(rates) == asked_for.target_steps, name
        for step, rate in enumerate(rates):
            behind = step - 1 if step < stage.warmup_steps else step
            factor = learning_rate_factor(behind, asked_for.target_steps, stage) if behind >= 0 else 0.0
            assert rate == pytest.approx(factor * stage.learning_rate), (name, step)
        seen.add((stage.schedule, stage.warmup_steps > 0))
    assert seen >= {("cosine", False), ("linear", True), ("constant", False)}


def test_accelerate_starts_what_was_planned(answers):
    seen = set()
    for name, (asked_for, run, found) in answers.items():
        if "accelerate" not in found:
            assert "accelerate.yaml" not in run.files, name
            continue
        read, layout = found["accelerate"], asked_for.layout
        assert read["num_processes"] == layout.num_accelerators, name
        assert read["num_machines"] == asked_for.num_nodes, name
        assert read["machine_rank"] == (1 if asked_for.num_nodes > 1 else 0), name
        assert read["module"] == f"trl.scripts.{read['arguments'][1].removesuffix('.yaml')}", name
        if "fsdp" in read:
            offload = "CPUOffloadPolicy" if layout.offload_parameters else "OffloadPolicy"
            assert read["fsdp"] == {"version": 2, "reshard": True, "offloads": offload, "state": "FULL_STATE_DICT"}
            seen.add("fsdp")
        if "degrees" in read:
            sizes = read["degrees"]
            assert sizes["size"] == layout.num_accelerators, name
            assert (sizes["dp_replicate"], sizes["cp"]) == (layout.replicas, layout.context), name
            seen.add("degrees")
        if "zero" in read:
            assert read["zero"] == {"stage": int(layout.zero), "init": int(layout.zero) == 3}, name
            seen.add("zero")
        else:
            assert read["mixed_precision"] == {"fp32": "no"}.get(asked_for.stage.dtype, asked_for.stage.dtype), name
    assert seen == {"fsdp", "degrees", "zero"}


def test_deepspeed_reads_the_batch_and_the_offload(answers):
    stages = set()
    for name, (asked_for, run, found) in answers.items():
        assert ("deepspeed" in found) == ("deepspeed.json" in run.files), name
        if "deepspeed" not in found:
            continue
        layout, stage, trainer = asked_for.layout, asked_for.stage, found["trainer"]
        rows = trainer["per_device_train_batch_size"]
        batch = rows * layout.accumulation * layout.data
        assert found["deepspeed"] == {
            "batch": [batch, rows, layout.accumulation],
            "clip": stage.gradient_clip,
            "stage": int(layout.zero),
            "offload_optimizer": layout.offload_optimizer,
            "offload_parameters": layout.offload_parameters,
            "gathers": int(layout.zero) == 3,
            "bf16": stage.dtype == "bf16",
            "fp16": stage.dtype == "fp16",
        }, name
        stages.add(int(layout.zero))
    assert stages == {0, 1, 2, 3}


def spoilt(run, file, change):
    content = yaml.safe_load(run.files[file])
    change(content)
    text = json.dumps(content) if file.endswith("json") else yaml.safe_dump(content)
    return type(run)(**{**vars(run), "files": {**run.files, file: text}})


def test_what_is_wrong_is_refused(tmp_path):
    """The checks above would fail on a wrong key, type or choice in any of the files."""
    sft = {(engine, label): how for engine, label, how in every_layout("sft")}
    fsdp = render(handover("trl", "sft", **sft["trl", "fsdp"]))
    zero = render(handover("deepspeed", "sft", **sft["deepspeed", "zero 3"]))
    plain = render(handover("trl", "sft", **sft["trl", "cpu"]))
    wrong = {
        "['--learning_rat', '1.0']": spoilt(plain, "sft.yaml", lambda found: found.update(learning_rat=1.0)),
        "invalid int value: 'many'": spoilt(plain, "sft.yaml", lambda found: found.update(max_steps="many")),
        "invalid choice: 'tight'": spoilt(plain, "sft.yaml", lambda found: found.update(packing_strategy="tight")),
        "wavy is not a valid": spoilt(plain, "sft.yaml", lambda found: found.update(lr_scheduler_type="wavy")),
        "['num_process']": spoilt(fsdp, "accelerate.yaml", lambda found: found.update(num_process=3)),
        "fsdp_config has no fsdp_versio": spoilt(
            fsdp, "accelerate.yaml", lambda found: found["fsdp_config"].update(fsdp_versio=2)
        ),
        "DeepSpeed has no ['zero']": spoilt(zero, "deepspeed.json", lambda found: found.update(zero={})),
        "Extra inputs are not permitted": spoilt(
            zero, "deepspeed.json", lambda found: found["zero_optimization"].update(stag=2)
        ),
        "train_batch_size is not equal": spoilt(zero, "deepspeed.json", lambda found: found.update(train_batch_size=7)),
        "ds gradient_clipping=7": spoilt(zero, "deepspeed.json", lambda found: found.update(gradient_clipping=7)),
    }
    said = asked([written(tmp_path / str(number), run) for number, run in enumerate(wrong.values())])
    for reason, found in zip(wrong, said, strict=True):
        assert reason in found.get("error", ""), (reason, found)
