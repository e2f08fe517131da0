"""A stage as MaxText's file: every field is seen, what it cannot say is refused by name."""

import subprocess
from dataclasses import fields, replace

import pytest
import yaml
from handover_case import other_values
from maxtext_case import ACCEPTED, LAYOUT, LLAMA, MIXTRAL, PRETRAIN, SFT, handover, refusals

from charter.catalog import models
from charter.engines.maxtext import MAXTEXT
from charter.engines.maxtext.capabilities import COMMIT, DATE
from charter.engines.maxtext.mapping import FILE, model_name, recorded, render_maxtext
from charter.errors import SpecError
from charter.spec.layout import Adapter, Recompute, ZeroStage
from charter.spec.stage_base import Guard, StageResources


def values_of(item):
    return yaml.safe_load(render_maxtext(item).files[FILE])


def refused(item):
    with pytest.raises(SpecError) as caught:
        render_maxtext(item)
    return {problem.path.removeprefix("pipeline.stage."): problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("name", ACCEPTED)
def test_recorded_classes_accept_what_is_rendered(name):
    assert list(refusals(values_of(ACCEPTED[name]))) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tensor_parallel": 2}, "tensor_parallel is not known"),
        ({"dtype": "fp8"}, "dtype: 'fp8' is none of"),
        ({"steps": 1.5}, "steps: 1.5 is none of"),
        ({"scan_layers": 1}, "scan_layers: 1 is none of"),
        ({"warmup_steps_fraction": 1.5}, "out of bounds"),
    ],
)
def test_wrong_keys_types_choices_and_bounds_are_seen(values, words):
    assert words in "".join(refusals(values))


def test_record_is_of_the_version_that_is_named():
    assert (recorded()["commit"], recorded()["date"]) == (COMMIT, DATE)
    assert recorded()["version"] in MAXTEXT.version
    assert len(recorded()["keys"]) > 700


def test_mesh_and_batch_multiply_to_devices_and_rows():
    for name, item in ACCEPTED.items():
        values, each = values_of(item), 2 if item.accelerator == "TPU7x" else 1
        axes = [values[axis] for axis in values if axis.startswith(("ici_", "dcn_"))]
        devices = 1
        for size in axes:
            devices *= size
        assert devices == item.num_accelerators * each, name
        rows = values["per_device_batch_size"] * devices * values["gradient_accumulation_steps"]
        assert rows == item.stage.global_batch, name


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize(("steps", "warmup"), [(1000, 50), (391, 30), (49, 3), (7, 6), (1000, 0), (1, 0)])
def test_shares_of_the_steps_are_cut_to_whole_steps(schedule, steps, warmup):
    stage = replace(PRETRAIN, schedule=schedule, warmup_steps=warmup, steps=steps)
    values = values_of(handover(stage, target_steps=steps))
    # create_learning_rate_schedule and the check of _validate_wsd at the recorded commit
    decay = values.get("wsd_decay_steps_fraction", 0.0)
    assert int(steps * values["warmup_steps_fraction"]) == warmup
    assert values["warmup_steps_fraction"] + decay <= 1.0
    if schedule == "linear":
        assert int(steps * decay) == (steps - warmup - 1 if warmup else steps)


OTHER = {
    "schedule": ("constant", "linear"),
    "dtype": ("fp32",),
    "optimizer": ("adamw_8bit",),
    "guard": (Guard(),),
    "adapter": (Adapter(rank=4),),
    "data": (),
    "init": (),
}


@pytest.mark.parametrize("stage", [PRETRAIN, SFT], ids=lambda item: item.kind)
def test_no_field_of_the_file_is_dropped(stage):
    before = render_maxtext(handover(stage))
    for item in fields(stage):
        row = next(row for row in before.mapping if row.field == f"stage.{item.name}")
        if row.how == "charter":
            continue
        for value in other_values(item.name, getattr(stage, item.name), OTHER):
            target = 1001 if item.name in ("steps", "epochs") else 1000
            try:
                after = render_maxtext(handover(replace(stage, **{item.name: value}), target_steps=target))
            except SpecError:
                continue
            assert after.files != before.files, (item.name, value)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"data": 32, "tensor": 2}, "layout.tensor"),
        ({"data": 32, "context": 2}, "layout.context"),
        ({"data": 32, "pipeline": 2}, "layout.pipeline"),
        ({"zero": ZeroStage.OPTIMIZER}, "layout.zero"),
        ({"offload_optimizer": True}, "layout.offload_optimizer"),
        ({"accumulation": 3}, "global_batch"),
        ({"data": 128}, "layout.data"),
        ({"expert": 3}, "layout.expert"),
        ({"zero": ZeroStage.NONE, "replicas": 2}, "layout.replicas"),
    ],
)
def test_layouts_that_it_does_not_run_are_refused(changes, path):
    assert path in refused(handover(PRETRAIN, replace(LAYOUT, **changes)))


def test_gpus_and_sizes_that_are_no_slice_are_refused():
    assert "written for TPUs" in refused(handover(PRETRAIN, accelerator="H100"))["resources"]
    odd = handover(replace(PRETRAIN, global_batch=80), replace(LAYOUT, data=20), num_nodes=5)
    assert "16 and 32 are" in refused(odd)["resources"]
    assert "layout.micro_batch" in refused(
        handover(PRETRAIN, replace(LAYOUT, micro_batch=1, accumulation=4), accelerator="TPU7x")
    )


def test_no_loss_balances_experts_whatever_its_files_say():
    # configs/models/qwen3-235b-a22b.yml: load_balance_loss_weight: 0.001, which a stage's own file cannot change.
    words = ("override_model_config=true", "load_balance_loss_weight=0.0")
    qwen = replace(models.get("Qwen3-235B-A22B").architecture, rope_theta=5_000_000.0)  # as its release of July 2025
    for model in (qwen, MIXTRAL):
        assert set(words) <= set(render_maxtext(handover(PRETRAIN, model=model)).command)
    assert not set(words) & set(render_maxtext(handover(PRETRAIN)).command)


def test_models_are_known_by_their_whole_shape():
    assert model_name(LLAMA) == "llama3.1-8b"
    assert model_name(MIXTRAL) == "mixtral-8x7b"
    assert model_name(models.get("Qwen3-30B-A3B").architecture) in ("qwen3-30b-a3b", "qwen3-30b-a3b-base")
    for changes in ({"vocab_size": 128_000}, {"tied_embeddings": True}, {"max_position_embeddings": 8192}):
        assert "convert no model" in refused(handover(PRETRAIN, model=replace(LLAMA, **changes)))["init"]


def test_recomputation_is_never_its_none_which_is_all():
    policies = [values_of(handover(PRETRAIN, replace(LAYOUT, recompute=kind)))["remat_policy"] for kind in Recompute]
    assert policies == ["minimal_with_context", "minimal", "full"]
    assert [kind.value for kind in Recompute] == ["none", "selective", "full"]


@pytest.mark.parametrize(
    ("stage", "field"),
    [
        (replace(PRETRAIN, dtype="fp16"), "dtype"),
        (replace(PRETRAIN, adapter=Adapter(rank=4)), "adapter"),
        (replace(PRETRAIN, warmup_steps=1000), "warmup_steps"),
        (replace(SFT, packing=True), "packing"),
        (replace(SFT, resources=StageResources(attention="flex_attention")), "resources"),
    ],
)
def test_settings_that_it_would_change_are_refused(stage, field):
    assert field in refused(handover(stage))


def test_scripts_start_slices_on_xpk_and_on_a_slice(tmp_path):
    item = ACCEPTED["pretrain, a copy on each of three slices"]
    run = render_maxtext(item)
    assert run.slices == ("v5p-64", 3)
    for name, text in run.files.items():
        if name.endswith(".sh"):
            (tmp_path / name).write_text(text)
            subprocess.run(["bash", "-n", name], cwd=tmp_path, check=True)
    shim = tmp_path / "bin"
    shim.mkdir()
    for tool in ("xpk", "gcloud"):
        (shim / tool).write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/{tool}.args\n')
        (shim / tool).chmod(0o755)
    given = {
        "PATH": f"{shim}:/usr/bin:/bin",
        "GKE_CLUSTER": "c",
        "IMAGE": "i",
        "DIRECTORY": "/d",
        "TPU_NAME": "t",
        "ZONE": "z",
    }
    for script in ("on_xpk.sh", "on_slice.sh"):
        subprocess.run(["bash", script], cwd=tmp_path, env=given, check=True)
    words = (tmp_path / "xpk.args").read_text().splitlines()
    assert words[words.index("--tpu-type") + 1] == "v5p-64"
    assert words[words.index("--num-slices") + 1] == "3"
    assert words[-1] == (tmp_path / "gcloud.args").read_text().splitlines()[-1] == "cd /d && bash run.sh"
