"""What the doctor says of a project's surroundings: commands of launchers are scripts that say what real ones say."""

import contextlib
import dataclasses
import json
import os
import socket
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.engines.project import load_project
from charter.launch.node_checks import leave_out
from charter.run import cluster_checks, doctor
from charter.run.cluster_checks import ask, examine_launcher, examine_plan
from charter.run.doctor import (
    connect,
    examine,
    examine_credentials,
    examine_extras,
    examine_network,
    needed_extras,
    torch_build,
    torch_cuda,
)
from charter.spec.launching import KubernetesSettings, Launch, SlurmSettings
from charter.spec.project import Project, Serving, Storage
from charter.spec.rewards import Environment, Reward
from charter.spec.sections import Alerts
from charter.templates.shipped import find_template, write_template


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("doctor") / "project"
    write_template(find_template("cai-smoke"), where)
    return where


@pytest.fixture(scope="module")
def project(root) -> Project:
    return load_project(root / "charter.yaml")


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Puts commands on an otherwise empty path."""
    where = tmp_path / "bin"
    where.mkdir()
    monkeypatch.setenv("PATH", str(where))

    def add(name: str, script: str) -> None:
        (where / name).write_text(f"#!/bin/bash\n{script}\n")
        (where / name).chmod(0o755)

    return add


@contextlib.contextmanager
def listening():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def by_name(checks) -> dict:
    return {check.name: check for check in checks}


def test_a_machine_alone_is_looked_at_without_a_project(tmp_path):
    groups = [check.group for check in examine(tmp_path)]
    assert set(groups) == {"machine", "packages", "disk", "drivers"}
    assert groups == sorted(groups, key=["machine", "packages", "disk", "drivers"].index)


def test_a_secret_that_is_set_is_found_and_never_shown(project, root):
    told = dataclasses.replace(project, alerts=Alerts(webhook="env:HOOK", smtp_password="env:PASSWORD"))
    found = by_name(examine_credentials(told, root, {"HOOK": "https://secret.example/abc"}))
    assert found["alerts.webhook"].ok
    assert not found["alerts.smtp_password"].ok
    assert "export PASSWORD" in found["alerts.smtp_password"].advice
    assert "secret.example" not in str(found)


def test_a_secret_in_a_file_that_others_may_read_is_told(project, root, tmp_path):
    key = tmp_path / "key"
    key.write_text("k")
    served = {"judge": Serving(endpoint="http://127.0.0.1:9/v1", api_key=f"file:{key}")}
    told = dataclasses.replace(project, serving=served)
    key.chmod(0o644)
    assert not examine_credentials(told, root)[0].ok
    key.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert examine_credentials(told, root)[0].ok
    key.unlink()
    assert "No such file" in examine_credentials(told, root)[0].found


def test_a_key_of_an_endpoint_that_is_left_aside_is_not_asked_for(project, root):
    served = {"judge": Serving(endpoint="http://127.0.0.1:9/v1", api_key="env:NONE", mode="own")}
    told = dataclasses.replace(project, serving=served)
    assert examine_credentials(told, root, {}) == ()
    assert examine_network(told, root) == ()


def test_every_server_of_the_file_is_connected_to(project, root):
    with listening() as port, listening() as other:
        served = {"judge": Serving(endpoint=f"http://127.0.0.1:{port}/v1", also_endpoints=("http://127.0.0.1:1/v1",))}
        told = dataclasses.replace(
            project,
            serving=served,
            alerts=Alerts(smtp=f"smtp://127.0.0.1:{other}"),
            storage=Storage(ledger="postgresql://127.0.0.1:1/charter"),
        )
        found = by_name(examine_network(told, root))
    assert {name: check.ok for name, check in found.items()} == {
        "serving.judge": True,
        "serving.judge (2)": False,
        "storage.ledger": False,
        "alerts.smtp": True,
    }
    assert "127.0.0.1:1" in found["storage.ledger"].found


@pytest.mark.parametrize("address", ["judge:8000", "http://:80/", "http://host:port/", "ftp://host/"])
def test_an_address_without_host_and_port_is_told(address):
    check = connect("serving.judge", address)
    assert not check.ok
    assert check.found == "no host and port in the address"


def test_a_second_place_that_cannot_be_read_is_told(project, root, tmp_path):
    there = dataclasses.replace(project, storage=Storage(artifacts=str(tmp_path)))
    assert examine_network(there, root)[0].ok
    nowhere = dataclasses.replace(project, storage=Storage(artifacts="gopher://x"))
    assert not examine_network(nowhere, root)[0].ok


def test_extras_follow_from_what_the_file_asks(project, root):
    assert set(dict(needed_extras(project, root, "local"))) <= {"adapters"}
    asked = dataclasses.replace(project, storage=Storage(artifacts="s3://b/c", ledger="postgresql://h/d"))
    assert {"store", "postgres", "ray"} <= set(dict(needed_extras(asked, root, "ray")))


def test_rewards_that_need_more_than_python_are_looked_at(project, root, monkeypatch):
    monkeypatch.setattr(doctor, "sandbox_problem", lambda: "bwrap is not installed")
    assert [check for check in examine_extras(project, root, "local") if check.name in ("sandbox", "extra math")] == []
    ppo = dataclasses.replace(
        project.pipeline["ppo"],
        rewards=(
            Reward(name="tests", kind="function", call="charter:program"),
            Reward(name="equal", kind="function", call="charter:expression"),
        ),
    )
    ppo = dataclasses.replace(ppo, environment=Environment(call="verifiers:game"))
    asking = dataclasses.replace(project, pipeline={"ppo": ppo})
    checks = {check.name: check for check in examine_extras(asking, root, "local")}
    assert "plays a taskset" in checks["extra verifiers"].found
    assert (checks["sandbox"].ok, checks["sandbox"].found) == (False, "bwrap is not installed")
    assert "compares expressions" in checks["extra math"].found


def test_server_of_an_environment_is_asked(project, root, monkeypatch):
    monkeypatch.setattr(doctor, "server_problem", lambda url: None if url == "http://up" else f"{url} is silent")
    ppo = project.pipeline["ppo"]
    pipeline = {
        name: dataclasses.replace(ppo, environment=Environment(call=f"openenv:http://{name}"))
        for name in ("up", "down")
    }
    asking = dataclasses.replace(project, pipeline=pipeline)
    checks = {check.name: check for check in examine_extras(asking, root, "local")}
    assert (checks["openenv:http://up"].ok, checks["openenv:http://down"].ok) == (True, False)
    assert checks["openenv:http://down"].found == "http://down is silent"


def test_a_missing_sbatch_says_where_to_go(project, root, commands):
    (check,) = examine_launcher(project, root, "slurm")
    assert not check.ok
    assert "login node" in check.advice


def test_a_slurm_client_without_its_configuration_is_told(project, root, commands):
    commands("sbatch", "printf 'sbatch: error: no DNS record\\nsbatch: fatal: no configuration source\\n' >&2; exit 1")
    (check,) = examine_launcher(project, root, "slurm")
    assert not check.ok
    assert check.found == "sbatch: fatal: no configuration source"
    assert "SLURM_CONF" in check.advice


def test_a_slurm_controller_that_is_down_is_told_and_nothing_more_is_asked(project, root, commands):
    commands("sbatch", "echo slurm-wlm 22.05.8")
    commands("scontrol", 'echo "Slurmctld(primary) at head is DOWN"')
    found = by_name(examine_launcher(project, root, "slurm"))
    assert set(found) == {"slurm", "controller"}
    assert not found["controller"].ok


def test_a_partition_that_is_not_there_names_those_that_are(project, root, commands):
    commands("sbatch", "echo slurm-wlm 22.05.8")
    commands("scontrol", 'echo "Slurmctld(primary) at head is UP"')
    commands("sinfo", '[[ "$*" == *%R* ]] && echo gpu; exit 0')
    commands("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    asked = dataclasses.replace(project, launch=Launch(slurm=SlurmSettings(partition="h100")))
    found = by_name(examine_launcher(asked, root, "slurm"))
    assert not found["partition h100"].ok
    assert found["partition h100"].advice.endswith("there is gpu")
    assert found["accounting"].ok
    assert "Charter's own clock" in found["accounting"].found


def test_kubernetes_needs_leave_to_create_jobs_an_image_and_a_volume(project, root, commands):
    commands("kubectl", 'echo "no"; exit 1')
    found = by_name(examine_launcher(project, root, "kubernetes"))
    assert {name: check.ok for name, check in found.items()} == {
        "kubernetes": False,
        "image": False,
        "volume_claim": False,
    }
    commands("kubectl", '[[ "$*" == "-n team auth can-i create jobs" ]] && echo yes')
    settings = KubernetesSettings(image="charter:1", volume_claim="work", namespace="team")
    asked = dataclasses.replace(project, launch=Launch(kubernetes=settings))
    assert all(check.ok for check in examine_launcher(asked, root, "kubernetes"))


def test_nodes_that_the_run_leaves_out_are_named(project, tmp_path):
    (tmp_path / "run").mkdir()
    leave_out(tmp_path / "run", {"n3": "2 uncorrected ECC errors"})
    (check,) = examine_launcher(project, tmp_path, "local")
    assert not check.ok
    assert "n3 (2 uncorrected ECC errors)" in check.found


def test_a_command_that_hangs_is_told(commands):
    commands("slow", "read -t 5 < <(:) ; exec sleep 5" if os.path.exists("/bin/sleep") else "sleep 5")
    os.environ["PATH"] += ":/bin:/usr/bin"
    assert "did not answer" in ask(["slow"], seconds=0.2).text
    assert ask(["slower-still"]).text == "slower-still is not installed here"


def test_the_cuda_version_of_torch_is_read_without_importing_it(tmp_path):
    file = tmp_path / "version.py"
    file.write_text("__version__ = '2.13.0'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n")
    assert torch_cuda(file) == "12.8"
    file.write_text("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    assert torch_cuda(file) is None
    assert "CUDA build" in torch_build(None, 8).advice


def test_the_command_tells_what_is_wrong_and_exits_with_7(root, tmp_path, commands):
    broken = tmp_path / "project"
    write_template(find_template("cai-smoke"), broken)
    (broken / "charter.yaml").write_text(
        (root / "charter.yaml").read_text() + "\nalerts: {webhook: env:NO_SUCH_HOOK}\n"
    )
    result = CliRunner().invoke(app, ["check", "environment", "-C", str(broken), "--json"])
    checks = json.loads(result.stdout)["checks"]
    assert result.exit_code == 7
    (wrong,) = [check for check in checks if not check["ok"]]
    assert (wrong["name"], wrong["group"]) == ("alerts.webhook", "credentials")
    shown = CliRunner().invoke(app, ["check", "environment", "-C", str(broken)]).stdout
    assert "✘ alerts.webhook" in shown
    assert "export NO_SUCH_HOOK" in shown


def test_an_unknown_launcher_or_one_without_a_project_is_refused(tmp_path):
    from charter.errors import UsageError

    for arguments in (
        ["check", "environment", "--on", "pbs"],
        ["check", "environment", "-C", str(tmp_path), "--on", "slurm"],
    ):
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, UsageError)


PLANNED = """
name: planned
models: {base: meta-llama/Llama-3.1-8B}
data:
  chats: {path: chats.jsonl, rows: 20_000, mean_tokens: 700}
  pairs: {path: pairs.jsonl, rows: 20_000, mean_tokens: 300}
pipeline:
  sft:
    {kind: sft, engine: trl, init: base, data: chats, epochs: 1, global_batch: 64, seq_len: 2048,
     resources: {num_nodes: 1}}
  pm: {kind: preference_model, init: base, data: pairs, epochs: 1, global_batch: 64, seq_len: 1024}
engines: {trl: {python: ./trl-python}}
resources: {infra: on_prem, accelerators: [H100:8], num_nodes: 2, price: 2.0}
"""


@pytest.fixture
def planned(tmp_path, commands):
    where = tmp_path / "planned"
    where.mkdir()
    (where / "charter.yaml").write_text(PLANNED)
    return where


def plan_checks(where, launcher):
    return by_name(examine_plan(load_project(where), where, launcher))


@pytest.mark.parametrize(("gres", "ok"), [("gpu:h100:8(S:0-1)", True), ("gpu:4", False), ("(null)", False)])
def test_planned_nodes_are_compared_with_those_of_slurm(planned, commands, gres, ok):
    commands("sinfo", f"printf 'n1 1 {gres}\\nn1 1 {gres}\\nn2 1 {gres}\\n'")
    checks = plan_checks(planned, "slurm")
    assert checks["2 nodes x 8 H100-SXM-80GB"].ok is ok
    said = checks["2 nodes x 8 H100-SXM-80GB"].found
    assert said == f"for pm; {2 if ok else 0} of 2 nodes have 8 or more"
    assert checks["8 x H100-SXM-80GB"].found.startswith("for sft")


def test_memory_that_jobs_ask_for_is_compared_with_the_nodes(planned, commands):
    """A job whose `--mem` no node has waits for ever."""
    commands("sinfo", "printf 'n1 64000 gpu:8\\nn2 2000000 gpu:8\\nn3 1 gpu:8\\n'")
    both = "2 nodes x 8 H100-SXM-80GB"
    assert plan_checks(planned, "slurm")[both].found == (
        "for pm; 3 of 3 nodes have 8 or more, 2 of them the 161.0 GiB of memory that the job asks for"
    )
    commands("sinfo", "printf 'n1 64000 gpu:8\\nn2 64000 gpu:8\\n'")
    short = plan_checks(planned, "slurm")[both]
    assert (short.ok, "resources.memory" in short.advice) == (False, True)
    text = (planned / "charter.yaml").read_text().replace("price: 2.0}", "price: 2.0, memory: 60GiB}")
    (planned / "charter.yaml").write_text(text)
    assert plan_checks(planned, "slurm")[both].ok


def test_quantities_of_kubernetes_are_bytes(planned, commands):
    lines = ("8 131072Ki", "8 512Gi", "8 540e9", "8 8589934592", "8 1500M", "8 128k", "8 what", "8 ")
    commands("kubectl", "printf '" + "\\n".join(lines) + "\\n'")
    rooms = cluster_checks.room_of_nodes(load_project(planned), "kubernetes")
    assert [room.memory_bytes for room in rooms] == [2**27, 2**39, 540e9, 2**33, 1.5e9, 128e3, None, None]


def test_planned_nodes_are_compared_on_ray_and_kubernetes(planned, commands):
    commands("ray", "printf 'Usage:\\n 0.0/32.0 CPU\\n 0.0/12.0 GPU\\n'")
    assert plan_checks(planned, "ray")["2 nodes x 8 H100-SXM-80GB"].found == "for pm; 12 accelerators in all"
    assert not plan_checks(planned, "ray")["2 nodes x 8 H100-SXM-80GB"].ok
    # It knows one resource; the path is asked as kubectl takes it, with the dots of a name escaped.
    path = r"""{.status.allocatable.nvidia\.com/gpu} {.status.allocatable.memory}{"\n"}"""
    commands("kubectl", rf"""[[ "$*" == *'{path}'* ]] && printf '8 2Ti\n 8Gi\n8 2Ti\n'""")
    assert plan_checks(planned, "kubernetes")["2 nodes x 8 H100-SXM-80GB"].ok
    others = dataclasses.replace(
        load_project(planned), launch=Launch(kubernetes=KubernetesSettings(accelerator_resource="amd.com/gpu"))
    )
    assert cluster_checks.room_of_nodes(others, "kubernetes") is None
    assert "does not say" in plan_checks(planned, "skypilot")["2 nodes x 8 H100-SXM-80GB"].found


def test_engines_of_the_plan_are_looked_for_in_their_environment(planned, commands):
    commands("sinfo", "printf 'n1 1 gpu:8\\nn2 1 gpu:8\\n'")
    where = planned / "trl-python"
    missing = plan_checks(planned, "slurm")["trl"]
    assert (missing.ok, "install trl==" in missing.advice) == (False, True)
    for version, ok, words in (("1.16.0", True, "files are written for 1.16.0"), ("absent", False, "is not installed")):
        where.write_text(f'#!/bin/bash\necho \'{{"trl": "{version}"}}\'\n')
        where.chmod(0o755)
        cluster_checks.versions_at.cache_clear()
        check = plan_checks(planned, "slurm")["trl"]
        assert (check.ok, words in check.found) == (ok, True)


def test_plan_that_does_not_fit_is_said(planned):
    text = (planned / "charter.yaml").read_text().replace("H100:8", "T4:1")
    (planned / "charter.yaml").write_text(text)
    check = plan_checks(planned, "slurm")["plan"]
    assert not check.ok
    assert "does not fit" in check.found
