import pytest

from charter.errors import UsageError
from charter.plan.what_if import overrides_of
from charter.spec.project import Place, Project, Resources

PROJECT = Project(name="x", models={}, pipeline={}, resources=Resources(accelerators=("H100:8",), max_nodes=4))


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        ("gpus=256", ["resources.max_nodes=32", "objective=fastest"]),
        ("gpus=4k", ["resources.max_nodes=500", "objective=fastest"]),
        ("nodes=8", ["resources.num_nodes=8", "resources.max_nodes=8"]),
        ("nodes=2", ["resources.num_nodes=2", "resources.max_nodes=4"]),
        ("accelerators=H200:8", ["resources.accelerators=[H200:8]"]),
        ("market=spot", ["resources.use_spot=true"]),
        ("market=on_demand", ["resources.use_spot=false"]),
        ("deadline=3d", ["deadline=3d"]),
        ("budget=$5_000; max_nodes=64", ["budget.limit=$5_000", "resources.max_nodes=64"]),
        ("pipeline.ppo.episodes=1000", ["pipeline.ppo.episodes=1000"]),
    ],
)
def test_a_question_is_values_of_charter_yaml(question, wanted):
    assert overrides_of(question, PROJECT) == wanted


def test_accelerators_reach_every_place_of_any_of():
    places = Resources(any_of=(Place(infra="aws"), Place(infra="gcp", accelerators=("A100-80GB:4",))))
    project = Project(name="x", models={}, pipeline={}, resources=places)
    assert overrides_of("accelerators=H200:8", project)[1:] == [
        "resources.any_of.0.accelerators=[H200:8]",
        "resources.any_of.1.accelerators=[H200:8]",
    ]
    assert overrides_of("gpus=16", project)[0] == "resources.max_nodes=4"


@pytest.mark.parametrize("question", ["gpus", "gpus=many", "gpus=0", "market=moon", "=3"])
def test_what_cannot_be_read_says_how_to_write_it(question):
    with pytest.raises(UsageError, match="--what-if"):
        overrides_of(question, PROJECT)
