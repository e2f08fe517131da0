"""Secrets planted everywhere at once: in every text of a charter.yaml, in options, in variables, in what a run left.

Each canary is different, so that the one that gets out says where it was. Searched is all that is printed, and every
byte below the project that Charter wrote.
"""

import json
import re
import sys
from itertools import count
from pathlib import Path

import pytest
import yaml

pytest.importorskip("sqlalchemy")

from dashboard_case import FILE, ProjectCase

from charter.cli.main import entry
from charter.engines.project import load_project, project_json_schema
from charter.launch.submission import preview_job
from charter.run.graph import build_pipeline

SCHEMA = project_json_schema()
KINDS = {
    name.removesuffix("Stage").lower(): SCHEMA["$defs"][name] for name in SCHEMA["$defs"] if name.endswith("Stage")
} | {"preference_model": SCHEMA["$defs"]["PreferenceModelStage"]}
CANARY = re.compile("canary[0-9]{4}", re.IGNORECASE)
ALL = (
    ("check", "charter.yaml"), ("check", "charter.yaml", "--json"), ("plan",), ("plan", "--json"), ("status",),
    ("submit", "--print", "--on", "slurm"), ("submit", "--print", "--json", "--on", "slurm"), ("run", "--dry-run"),
    ("report",), ("cost", "report"), ("cost", "report", "--json"), ("plan", "--explain", "sft"), ("logs", "sft"),
)  # fmt: skip


class Planter:
    """Canaries for every text that a schema allows, one for each."""

    def __init__(self) -> None:
        self.numbers, self.plain, self.closed = count(), [], []

    def canary(self) -> str:
        return f"sk-canary{next(self.numbers):04d}abcdefgh"

    def value(self, node, path):
        """A value of a schema in which every text is a canary; None where it has none."""
        if "$ref" in node:
            return self.value(SCHEMA["$defs"][node["$ref"].rpartition("/")[2]], path)
        for choice in ("anyOf", "oneOf"):
            if choice in node:
                values = [self.value(item, path) for item in node[choice][::-1]]
                return next((value for value in values if value is not None), None)
        match node.get("type"):
            case "string" if "enum" in node or "const" in node:
                self.closed.append(path)
                return self.canary()
            case "string":
                self.plain.append(path)
                return self.canary()
            case "array":
                value = self.value(node.get("items", {}), f"{path}[0]")
                return None if value is None else [value]
            case "object":
                return self.mapping(node, path)
        return None

    def mapping(self, node, path):
        more = node.get("additionalProperties")
        values = {name: self.value(item, f"{path}.{name}") for name, item in node.get("properties", {}).items()}
        if isinstance(more, dict):
            values["one"] = self.value(more, f"{path}.one")
        return {name: value for name, value in values.items() if value is not None} or None


def planted():
    """A file with a canary in every text, and the paths of those whose field takes any text."""
    planter = Planter()
    content = {
        name: planter.value(node, name) for name, node in SCHEMA["properties"].items() if name not in ("pipeline",)
    }
    content["pipeline"] = {name: planter.value(node, f"pipeline.{name}") for name, node in KINDS.items()}
    for name, stage in content["pipeline"].items():
        stage["kind"] = name
    return {name: value for name, value in content.items() if value is not None}, planter


def said(capsys, monkeypatch, *words):
    """All that a command prints; its code."""
    with monkeypatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, getattr(sys, name))
        patch.setattr(sys, "argv", ["charter", *words])
        with pytest.raises(SystemExit) as ended:
            entry()
        shown = capsys.readouterr()
    return shown.out + shown.err, ended.value.code


def leaks(text):
    return sorted(set(CANARY.findall(text)))


def written(root, *, but):
    """Canaries in the files below a directory, by file."""
    files = [path for path in root.rglob("*") if path.is_file() and path.name not in but]
    found = {str(path.relative_to(root)): leaks(path.read_bytes().decode("latin-1")) for path in files}
    return {name: canaries for name, canaries in found.items() if canaries}


def test_every_text_of_a_file_that_is_a_secret_is_refused(tmp_path, capsys, monkeypatch):
    content, planter = planted()
    assert len(planter.plain) > 100
    (tmp_path / "charter.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    for words in ALL:
        text, code = said(capsys, monkeypatch, *words)
        assert code == 2, (words, text[:2000])
        assert leaks(text) == [], words
    text, _ = said(capsys, monkeypatch, "check", "charter.yaml")
    silent = [path for path in planter.plain if path not in text and ".environment." not in path]
    assert silent == [], "nothing says that these hold a secret"
    assert written(tmp_path, but=("charter.yaml",)) == {}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("launch.environment.PGPIN=canary0001", 0),
        ("launch.environment={PGPIN: canary0001, NCCL_DEBUG: WARN}", 0),
        ("launch.environment.PGPIN=[canary0001]", 2),
        ("launch.environment=[canary0001]", 2),
    ],
)
def test_no_command_that_is_named_has_a_variable(tmp_path, capsys, monkeypatch, change, code):
    (tmp_path / "charter.yaml").write_text(FILE.format(name="demo", owner="ada", tag="safe", gate="false"))
    rows = {"text": "A word.", "prompt": "How long?", "chosen": "Ten minutes.", "rejected": "Never."}
    for name in ("texts", "prompts", "pairs"):
        (tmp_path / f"{name}.jsonl").write_text((json.dumps(rows) + "\n") * 8)
    monkeypatch.chdir(tmp_path)
    text, ended = said(capsys, monkeypatch, "plan", "--set", change, "--set", "launch.environment.NCCL_DEBUG=INFO")
    assert ended == code, text
    assert leaks(text) == []
    assert code or "launch.environment.NCCL_DEBUG=INFO" in " ".join(text.split())


ADDRESSES = (
    "https://canary0001@host/x", "postgresql://me:canary0001@host/db", "postgresql://me:can/canary0001@x@host/db",
    "https://s.example/x?sig=canary0001", "https://s.example/x?a=1&X-Amz-Signature=canary0001",
)  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("field", ["notes: {sft: '%s'}", "owner: '%s'", "storage: {artifacts: '%s'}"])
def test_addresses_with_a_secret_are_refused(tmp_path, capsys, monkeypatch, address, field):
    text = FILE.format(name="demo", owner="ada", tag="safe", gate="false").replace("owner: ada\n", "")
    (tmp_path / "charter.yaml").write_text(text + field % address + "\n")
    printed, code = said(capsys, monkeypatch, "check", str(tmp_path / "charter.yaml"))
    assert code == 2
    assert leaks(printed) == []
    assert "secret" in printed


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project that loads, half run: secrets in variables of its jobs, behind a reference, and in a log."""
    case = ProjectCase(tmp_path, gate=False)
    file = tmp_path / "charter.yaml"
    file.write_text(
        file.read_text()
        + "launch: {environment: {HF_TOKEN: canary0001, PLAIN: sk-canary0002abcdefgh, NCCL_DEBUG: WARN,"
        + " PGPASSWORD: canary0008, PIN: canary0009, WANDB: canary0010}}\n"
        + "serving: {sft: {endpoint: 'http://127.0.0.1:9/v1', api_key: env:JUDGE_KEY}}\n"
    )
    case.plan()
    case.attempt("sft", seconds=50, outcome="killed", note="killed by signal 9", steps=20)
    case.metrics("sft", 20)
    case.failed("sft", "the server ended")
    log = (
        "Authorization: Basic canary0003\nGET https://canary0004@host/v1?token=canary0005\nkey sk-canary0006abcdefgh\n"
    )
    (case.directory("sft") / "log.txt").write_text(log)
    monkeypatch.setenv("JUDGE_KEY", "sk-canary0007abcdefgh")
    return tmp_path


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_what_is_printed_and_written_has_no_secret(project, capsys, monkeypatch, words):
    monkeypatch.chdir(project)
    text, code = said(capsys, monkeypatch, *words)
    assert code != 1, text
    assert leaks(text) == []
    assert written(project, but=("charter.yaml", "log.txt")) == {}


def test_what_a_job_shows_is_all_but_the_secrets(project, capsys, monkeypatch):
    text, _ = said(capsys, monkeypatch, "submit", "--print", "--on", "slurm", "-C", str(project))
    assert "NCCL_DEBUG=WARN" in text
    assert "HF_TOKEN='(hidden)'" in text
    assert "JUDGE_KEY:?" in text


def test_a_job_that_is_sent_has_the_variables_of_the_file(project):
    loaded = load_project(project / "charter.yaml")
    directory = build_pipeline(loaded, project).stages["sft"].directory
    job = preview_job(loaded, "sft", directory, scheduler="slurm", module="charter.train.sft", pools={})
    assert job.environment["HF_TOKEN"] == "canary0001"
    assert "canary0007" not in json.dumps(dict(job.environment))


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (("plan", "--set", "owner=sk-canary0001abcdefgh"), {}),
        (("plan", "--set", "notes.sft=https://canary0001@host/"), {}),
        (("plan", "--set", "tags.x=ghr_canary0001abcdefgh"), {}),
        (("plan", "--set", "serving.sft.api_key=canary0001"), {}),
        (("plan", "--alternatives", "sk-canary0001abcdefgh"), {}),
        (("plan", "--api-key=sk-canary0001abcdefgh"), {}),
        (("sk-canary0001abcdefgh",), {}),
        (("run", "--dry-run", "sk-canary0001abcdefgh"), {}),
        (("ui", "--token", "sk-canary0001abcdefgh"), {}),
        (("submit", "--print", "--on", "sk-canary0001abcdefgh"), {}),
        (("plan",), {"CHARTER_OWNER": "sk-canary0001abcdefgh"}),
        (("plan",), {"CHARTER_TAGS__X": "https://s.example/x?sig=canary0001"}),
        (("plan",), {"CHARTER_SERVING__SFT__API_KEY": "canary0001"}),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else ",".join(part),
)
def test_options_and_variables_print_no_secret(project, capsys, monkeypatch, words, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project)
    text, code = said(capsys, monkeypatch, *words)
    assert code != 0
    assert leaks(text) == []
    assert written(project, but=("charter.yaml", "log.txt")) == {}


def test_a_line_of_a_value_in_a_block_is_not_quoted(tmp_path, capsys, monkeypatch):
    file = Path(tmp_path / "charter.yaml")
    file.write_text("name: p\nserving:\n  judge:\n    api_key: |\n      first\n      canary0001: x: [y\n   bad: 1\n")
    text, code = said(capsys, monkeypatch, "check", str(file))
    assert code == 2
    assert leaks(text) == []
