"""What the suites of an eval stage add to its plan: answers and judged pairs cost time and money."""

import pytest

from charter.plan.pipeline_names import Library, Models
from charter.plan.workload import workload
from charter.spec.stage import EvalStage


@pytest.fixture
def phases(lab):
    """The phases of an eval stage by name; several of one name are put together."""

    def make(**fields):
        stage = EvalStage(policy="base", rollout_batch=100, max_new_tokens=64, **fields)
        made = lab.project(pipeline={**lab.ALL_KINDS, "stage": stage})
        library = Library(project=made, facts={}, assumptions=[])
        found = workload(stage, Models(project=made, architectures={"base": lab.LLAMA_8B}), library)
        names = {phase.name for phase in found.phases}
        return {name: sum(phase.sequences for phase in found.phases if phase.name == name) for name in names}

    return make


def test_the_judge_compares_every_answer_of_what_was_trained(phases):
    given = {"against": "base", "judge": "base", "prompts": ("prompts",), "num_prompts": 500}
    without = phases(**given, suites=("hhh",))
    found = phases(**given, suites=("judge_win_rate",))
    assert found["judge scores"] - without.get("judge scores", 0) == 2 * 500


def test_every_further_judge_reads_the_pairs(phases):
    found = phases(judge="base", also_judges=("sft",), pairs=("pairs",), suites=("judge_agreement",))
    assert found["judge 2 scores"] == found["judge scores"] == 2 * 40_000


def test_prompts_to_be_refused_are_answered_by_every_model(phases):
    found = phases(against="base", refusal_prompts=("prompts",), suites=("refusal",))
    assert (found["answers of policy"], found["answers of against"]) == (20_000, 20_000)
