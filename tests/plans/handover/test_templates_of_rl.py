"""The RL stage of a template, handed to another engine: refused with the reason, in words that a user has written."""

import pytest

from charter.errors import SpecError
from charter.report.handover import export_handover
from charter.spec.load import load_project
from charter.templates.shipped import find_template, write_template


@pytest.mark.parametrize(
    ("template", "engine", "words"),
    [
        ("rlvr-tiny", "trl", "trl cannot express right (function charter:exact)"),
        ("rlvr-tiny", "openrlhf", "openrlhf cannot express right (function charter:exact)"),
        ("grpo-7b", "verl", "verl cannot express right (function charter:number), short (function charter:overlong)"),
        ("constitution-rl-8b", "nemo_rl", "principles (judge judge by constitution, pointwise)"),
    ],
)
def test_list_of_rewards_is_refused_by_its_names(tmp_path, template, engine, words):
    write_template(find_template(template), tmp_path, force=False)
    with pytest.raises(SpecError) as refusal:
        export_handover(load_project(tmp_path), tmp_path, "rl", engine)
    messages = {problem.path: problem.message for problem in refusal.value.problems}
    assert words in messages["pipeline.rl.rewards"]
    assert "Reward(" not in str(refusal.value)
