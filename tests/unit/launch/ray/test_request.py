"""What is asked of Ray: the text for the three shapes of a job, and what never stands in it."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.launch.ray.request import ray_accelerator_type, render_request, request_of, resources_per_task
from charter.spec.launching import RaySettings

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "launch" / "ray"
SETTINGS = RaySettings(address="10.0.0.7:6379", resources={"fast_disk": 0.5})
ONE = StageJob(
    name="charter-harmless-8b-sl-cai-0a1b2c3d",
    run="harmless-8b",
    stage="sl-cai",
    kind="sft",
    attempt=2,
    command=("/opt/charter/bin/python", "-m", "charter.launch.agent", "--stage-dir", "/data/run/stages/sl-cai"),
    directory=Path("/data/run/stages/sl-cai"),
    log=Path("/data/run/stages/sl-cai/jobs/3/log.txt"),
    environment={"OMP_NUM_THREADS": "12", "HF_HUB_OFFLINE": "1"},
    secrets={"JUDGE_KEY": "env:JUDGE_KEY"},
    processes_per_node=8,
    accelerator="H100-SXM-80GB",
    accelerators_per_node=8,
    cpus_per_node=96,
    memory_bytes_per_node=900 * 10**9,
    labels={"project": "harmless-8b", "owner": "alignment", "stage": "sl-cai"},
)
SHAPES = {
    "one_node": ONE,
    "several_nodes": replace(ONE, nodes=4, spare_nodes=1, time_limit_seconds=86400.0, exclude_nodes=("gpu-3",)),
    "driver": replace(ONE, kind="ppo", nodes=2, drives=True),
    "shards": replace(
        ONE, kind="label", shards=1000, processes_per_node=1, accelerators_per_node=1, cpus_per_node=8, use_spot=True
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_text_is_as_it_was_looked_at(shape):
    assert render_request(SHAPES[shape], SETTINGS) == (GOLDEN / f"{shape}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_printed_is_what_is_submitted(shape):
    assert yaml.safe_load(render_request(SHAPES[shape], SETTINGS)) == request_of(SHAPES[shape], SETTINGS)


def test_a_driver_reserves_nothing_that_its_engine_takes():
    asked = request_of(SHAPES["driver"], SETTINGS)
    assert asked["resources_per_task"] == {"CPU": 1}
    assert asked["tasks"]["nodes"] == 1
    taken = {"nodes": 2, "resources_per_node": resources_per_task(ONE, SETTINGS)}
    assert asked["tasks"]["engine_takes"] == taken


def test_no_value_of_a_secret_is_in_the_text(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret-value")
    text = render_request(ONE, SETTINGS)
    assert "sk-very-secret-value" not in text
    assert "env:JUDGE_KEY" in text


def test_custom_resources_count_per_process_of_a_node_and_per_shard():
    assert resources_per_task(ONE, SETTINGS)["fast_disk"] == 8 * 0.5
    assert resources_per_task(SHAPES["shards"], SETTINGS)["fast_disk"] == 0.5


def test_a_job_without_accelerators_asks_for_none():
    asked = resources_per_task(replace(ONE, accelerator="", accelerators_per_node=0), RaySettings())
    assert asked == {"CPU": 96, "memory": 900 * 10**9}


def test_a_job_that_is_not_for_spot_keeps_off_spot_nodes():
    assert request_of(ONE, SETTINGS)["label_selector"] == {"ray.io/market-type": "!spot"}
    assert request_of(SHAPES["shards"], SETTINGS)["label_selector"] == {}


@pytest.mark.parametrize(
    ("accelerator", "name"),
    [
        ("H100", "H100"),
        ("A100-SXM-80GB", "A100"),
        ("MI300X", "AMD-Instinct-MI300X-OAM"),
        ("RTX-PRO-6000", "RTX-PRO-6000"),
    ],
)
def test_accelerators_have_the_names_that_ray_gives_them(accelerator, name):
    assert ray_accelerator_type(accelerator) == name


def test_an_accelerator_that_ray_has_no_name_for_is_told_with_what_works():
    with pytest.raises(UsageError, match=r"Ray has no name for the accelerator RTX3090\n(.|\n)*launch\.ray\.resources"):
        ray_accelerator_type("RTX3090")


@given(
    cpus=st.integers(1, 512),
    gpus=st.integers(0, 16),
    memory=st.none() | st.integers(1, 2**45),
    processes=st.integers(1, 16),
    custom=st.dictionaries(st.sampled_from(["disk", "net"]), st.floats(0.001, 8)),
)
def test_a_task_asks_for_at_least_what_its_node_needs(cpus, gpus, memory, processes, custom):
    job = replace(
        ONE,
        cpus_per_node=cpus,
        accelerators_per_node=gpus,
        memory_bytes_per_node=memory,
        processes_per_node=processes,
    )
    asked = resources_per_task(job, RaySettings(resources=custom))
    assert asked["CPU"] == cpus
    assert asked.get("GPU", 0) == gpus
    assert asked.get("memory") == memory
    assert all(asked[name] == amount * processes for name, amount in custom.items())
