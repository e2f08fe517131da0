"""A project as DVC sees it; with the real `dvc` where it is installed (CHARTER_DVC names it)."""

import os
import shutil
import subprocess
import sys

import pytest
import yaml

DVC = os.environ.get("CHARTER_DVC") or shutil.which("dvc")


def test_the_stages_of_a_project_are_written_and_those_of_others_kept(work):
    (work.root / "dvc.yaml").write_text("stages: {mine: {cmd: echo, outs: [x]}}\nplots: []\n")
    (work.root / "dvc.lock").write_text("schema: '2.0'\nstages: {mine: {cmd: echo}}\n")
    before = work.charter("data", "dvc")
    assert (before.code, before.out) == (0, "wrote dvc.yaml (3 stages) and dvc.lock (0 finished)\n")
    assert work.run().code == 0
    assert work.charter("data", "dvc").code == 0
    described = yaml.safe_load((work.root / "dvc.yaml").read_text())
    locked = yaml.safe_load((work.root / "dvc.lock").read_text())
    assert (list(described["stages"]), described["plots"]) == (["mine", "a", "b", "c"], [])
    outputs = f"run/stages/{work.stage_dir('a').name}/outputs"
    assert described["stages"]["b"]["deps"] == ["chat.jsonl", outputs]
    assert described["stages"]["a"]["outs"] == [{outputs: {"persist": True}}]
    assert locked["stages"]["mine"] == {"cmd": "echo"}
    assert [item["path"] for item in locked["stages"]["c"]["deps"]] == ["other.jsonl", outputs]
    (work.root / "dvc.yaml").write_text("stages: {a: {cmd: echo}}\n")
    clash = work.charter("data", "dvc")
    assert (clash.code, "that Charter did not write" in clash.err) == (2, True)


@pytest.mark.skipif(DVC is None, reason="needs dvc")
def test_the_real_dvc_finds_all_up_to_date_and_pulls_what_was_lost(work, tmp_path):
    def dvc(*arguments):
        environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
        return subprocess.run(
            [DVC, *arguments], cwd=work.root, capture_output=True, text=True, check=False, env=environment
        )

    assert dvc("init", "--no-scm", "-q").returncode == 0
    assert work.run().code == 0
    assert work.charter("data", "dvc").code == 0
    for name in ("chat.jsonl", "other.jsonl"):
        command = [sys.executable, "-m", "charter.cli.main", "data", "version", str(work.root / name), "--write"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    status = dvc("status")
    assert "up to date" in status.stdout, status.stdout + status.stderr
    assert dvc("remote", "add", "-d", "store", str(tmp_path / "remote")).returncode == 0
    pushed = dvc("push")
    assert pushed.returncode == 0, pushed.stderr
    outputs = work.outputs()
    shutil.rmtree(work.root / ".dvc" / "cache")
    (work.root / "chat.jsonl").unlink()
    shutil.rmtree(work.stage_dir("b") / "outputs")
    pulled = dvc("pull")
    assert pulled.returncode == 0, pulled.stderr
    again = work.run()
    assert (again.code, again.names("stage_started")) == (0, [])
    assert work.outputs() == outputs
    (work.root / "other.jsonl").write_text((work.root / "chat.jsonl").read_text())
    assert "other.jsonl" in dvc("status").stdout
