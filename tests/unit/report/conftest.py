import importlib.util
import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from charter.catalog import models
from charter.plan.make import make_plan
from charter.plan.plan import Plan
from charter.spec.project import Budget, DataSpec, ModelSpec, Project, Resources
from charter.spec.stage import LabelStage, PreferenceModelStage, SftStage

pytest.importorskip("sqlalchemy")


class Page(HTMLParser):
    """What a browser would see: elements with attributes, the text of each script, the text outside them."""

    def __init__(self, html):
        super().__init__()
        self.elements = []
        self.scripts = []
        self.text = ""
        self._in_script = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data):
        if self._in_script:
            attrs, so_far = self.scripts[-1]
            self.scripts[-1] = (attrs, so_far + data)
        else:
            self.text += data + " "

    @property
    def data(self):
        return json.loads(next(text for attrs, text in self.scripts if attrs.get("id") == "data"))


@pytest.fixture(scope="session")
def parse() -> type[Page]:
    """Reads a page as a browser would."""
    return Page


@pytest.fixture(scope="session")
def fixture_run() -> ModuleType:
    """The module that writes run directories."""
    spec = importlib.util.spec_from_file_location("fixture_run", Path(__file__).with_name("fixture_run.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fixture_run"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def finished(fixture_run, tmp_path_factory) -> Path:
    return fixture_run.write_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="session")
def running(fixture_run, tmp_path_factory) -> Path:
    return fixture_run.write_run(tmp_path_factory.mktemp("running"), finished=False)


@pytest.fixture(scope="session")
def unpriced(fixture_run, tmp_path_factory) -> Path:
    return fixture_run.write_run(tmp_path_factory.mktemp("unpriced"), priced=False)


@pytest.fixture(scope="session")
def project() -> Project:
    """Three stages on rented accelerators, a budget and a deadline."""
    return Project(
        name="lab",
        models={"base": ModelSpec(architecture=models.get("Llama-3.1-8B").architecture)},
        data={
            "chat": DataSpec(path="chat.jsonl", rows=40_000, mean_tokens=300),
            "prompts": DataSpec(path="prompts.jsonl", rows=20_000, mean_tokens=60),
        },
        pipeline={
            "sft": SftStage(init="base", data=("chat",)),
            "pm": PreferenceModelStage(init="sft", data=("label",)),
            "label": LabelStage(judge="base", policy="sft", prompts=("prompts",), pairs=10_000),
        },
        resources=Resources(infra="aws", accelerators=("H100:8", "A100-80GB:8"), max_nodes=2),
        budget=Budget(limit=1000.0),
        deadline=7 * 86400.0,
    )


@pytest.fixture(scope="session")
def plan(project) -> Plan:
    """The plan of the project, with every option that fits."""
    architectures = {name: spec.architecture for name, spec in project.models.items() if spec.architecture}
    return make_plan(project, architectures=architectures, data_facts={})
