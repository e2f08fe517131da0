"""The gauges for Prometheus, and what trackers are told of a stage: pure, and silent about what is unknown."""

from dataclasses import replace

from meter_samples import GPU, ROW, with_gpus

from charter.artifacts import durable
from charter.metering.row import append_row
from charter.tracking.forward import StageMetrics, figures, last_rows
from charter.tracking.journal import card_path
from charter.tracking.progress import Standing
from charter.tracking.run_facts import Followed, attachments, flat, stage_facts

FOLLOWED = Followed(key="k1", name="harmless", root="/r", trackers={}, owner="ann", tags={"team": "safety"})


def gauges(*stages, cost_usd=None):
    return {figure.name: dict(figure.values) for figure in figures("r", Standing(), tuple(stages), cost_usd=cost_usd)}


def test_a_running_stage():
    progress = {"step": 3, "target_step": 9, "metrics": {"loss": 0.5, "note": "x"}}
    found = gauges(
        StageMetrics(name="sft", standing=Standing(attempts=2), progress=progress, machines=(ROW,)), cost_usd=1.5
    )
    assert found["charter_run_cost_usd"] == {("r",): 1.5}
    assert found["charter_stage_step"] == {("r", "sft"): 3.0}
    assert found["charter_stage_metric"] == {("r", "sft", "loss"): 0.5}
    assert found["charter_stage_state"] == {("r", "sft", "running"): 1.0}
    assert found["charter_node_processes"] == {("r", "sft", "n1"): 2.0}


def test_what_is_unknown_has_no_value():
    found = gauges(StageMetrics(name="sft", standing=Standing(), machines=(ROW,)))
    for name in ("charter_run_cost_usd", "charter_stage_step", "charter_gpu_activity_ratio", "charter_gpu_power_watts"):
        assert found[name] == {}
    machine = with_gpus(replace(GPU, sm_activity=None, utilisation=None))
    found = gauges(StageMetrics(name="sft", standing=Standing(), machines=(machine,)))
    assert found["charter_gpu_activity_ratio"] == {}
    assert found["charter_gpu_power_watts"] == {("r", "sft", "n1", "0", "H100"): 500.0}


def test_machines_of_a_stage_that_has_ended_are_not_shown():
    found = gauges(StageMetrics(name="sft", standing=Standing(state="finished"), machines=(ROW,)))
    assert found["charter_node_processes"] == {}


def test_the_last_sample_of_every_node(tmp_path):
    for time in (1.0, 2.0):
        for node in ("n1", "n2"):
            append_row(tmp_path, replace(ROW, time=time, node=node))
    assert [(row.node, row.time) for row in last_rows(tmp_path)] == [("n1", 2.0), ("n2", 2.0)]


def stage(tmp_path):
    job = {"stage": "sft", "kind": "sft", "fingerprint": "01", "seed": 7, "frozen": {"device": "cpu", "threads": 2}}
    job |= {"spec": {"steps": 3, "adapter": {"rank": 8}, "engine": "native", "init": "base", "kind": "sft", "x": None}}
    job |= {"identity": {"spec": {"steps": 3, "adapter": {"rank": 8}}}, "inputs": {}}
    durable.write_json(tmp_path / "job.json", job)
    return tmp_path


def test_what_counts_is_a_parameter_and_the_rest_a_tag(tmp_path):
    facts = stage_facts(FOLLOWED, stage(tmp_path), started_at=1.0)
    assert facts.parameters == {"steps": "3", "adapter.rank": "8", "seed": "7"}
    assert facts.tags["charter.setting.engine"] == "native"
    assert facts.tags["charter.frozen.threads"] == "2"
    assert (facts.tags["team"], facts.tags["charter.owner"]) == ("safety", "ann")
    assert not {"charter.setting.kind", "charter.setting.steps", "charter.setting.x"} & set(facts.tags)


def test_a_stage_without_a_job_has_no_facts(tmp_path):
    assert stage_facts(FOLLOWED, tmp_path, started_at=None) is None


def test_weights_are_files_only_when_they_are_asked_for(tmp_path):
    run, directory = tmp_path, tmp_path / "stages" / "sft-01"
    (directory / "outputs" / "model").mkdir(parents=True)
    names = ["model/weights.safetensors", "results.json", "../../secret", "gone.json"]
    durable.write_json(directory / "record.json", {"outputs": dict.fromkeys(names, "00")})
    (directory / "outputs" / "model" / "weights.safetensors").write_text("w")
    (directory / "outputs" / "results.json").write_text("{}")
    (directory / "secret").write_text("s")
    card_path(run, "sft-01").parent.mkdir(parents=True)
    card_path(run, "sft-01").write_text("# sft")
    small = [name for name, _ in attachments(run, directory, weights=False)]
    assert small == ["record.json", "README.md", "outputs/results.json"]
    every = [name for name, _ in attachments(run, directory, weights=True)]
    assert every == [*small[:2], "outputs/model/weights.safetensors", "outputs/results.json"]
    assert list(attachments(run, tmp_path / "none", weights=True)) == []


def test_nested_settings_are_dotted():
    assert dict(flat({"a": {"b": [1, 2]}, "c": None, "d": []})) == {"a.b": "[1, 2]"}
