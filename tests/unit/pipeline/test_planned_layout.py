from dataclasses import dataclass

import pytest

from charter.models.engine_layout import StageLayout, engine_layout
from charter.run.planned import frozen_layout, planned_layouts
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.project import Project, Resources
from charter.spec.stage import PreferenceModelStage, SftStage, StageResources

SFT = SftStage(init="b", data=("d",))
PLANNED = Layout(
    data=4,
    tensor=2,
    zero=ZeroStage.PARAMETERS,
    micro_batch=8,
    replicas=2,
    recompute=Recompute.FULL,
    offload_optimizer=True,
)


@dataclass
class Place:
    infra: str = "local"
    is_cpu: bool = False


@dataclass
class Option:
    place: Place
    layout: Layout


@dataclass
class Planned:
    option: Option


@dataclass
class PlanOfOne:
    planned: Planned

    def stage(self, name):
        return self.planned if name == "s" else None


def layouts(monkeypatch, stage=SFT, layout=PLANNED, **place):
    monkeypatch.setattr("charter.launch.machine.gpus_here", lambda: 8)
    resources = Resources(accelerators=("cpu:8" if place.get("is_cpu") else "H100:8",))
    project = Project(name="p", models={}, pipeline={"s": stage}, resources=resources)
    return planned_layouts(PlanOfOne(Planned(Option(Place(**place), layout))), project)


def test_the_engine_reads_back_the_layout_that_was_planned():
    assert engine_layout(frozen_layout(PLANNED, SFT)) == StageLayout(
        world_size=8, zero=3, replicas=2, tensor=2, micro_batch=8, recompute="full", offload="optimizer"
    )
    assert frozen_layout(Layout(micro_batch=1), SFT) == {"micro_batch": 1}
    everything = Layout(zero=ZeroStage.PARAMETERS, offload_parameters=True, offload_optimizer=True)
    assert frozen_layout(everything, SFT)["offload"] == "all"


@pytest.mark.parametrize(("sequences", "rows"), [(8, 4), (1, 1)])
def test_a_row_of_pairs_is_two_sequences(sequences, rows):
    pairs = PreferenceModelStage(init="b", data=("d",))
    assert frozen_layout(Layout(micro_batch=sequences), pairs)["micro_batch"] == rows


def test_the_file_comes_before_the_plan(monkeypatch):
    pinned = SftStage(init="b", data=("d",), resources=StageResources(recompute="none", micro_batch=2))
    found = layouts(monkeypatch, pinned)["s"]
    assert found == {"zero": 3, "replicas": 2, "tensor": 2, "offload": "optimizer"}


def test_only_what_was_planned_on_this_machines_accelerators_counts(monkeypatch):
    assert "s" in layouts(monkeypatch)
    assert layouts(monkeypatch, infra="aws") == {}
    assert layouts(monkeypatch, is_cpu=True) == {}
    assert layouts(monkeypatch, layout=Layout(data=4)) == {}, "planned for another number of processes"
