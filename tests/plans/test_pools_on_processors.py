"""Servers on processors that the file describes: what is planned is what is sent, and its time and memory follow."""

import json
from itertools import pairwise

import pytest

from charter.engines.project import load_project
from charter.plan.project_plan import plan_project
from charter.run.submit import preview
from charter.templates.shipped import find_template, write_template

POOL = "serving.judge={{pool: {{engine: charter, replicas: {}{}}}, api: completions, billed: false}}"


@pytest.fixture
def smoke(tmp_path):
    write_template(find_template("cai-smoke"), tmp_path)

    def project(*overrides):
        return load_project(tmp_path / "charter.yaml", overrides=overrides), tmp_path

    return project


def label_of(project):
    plan = plan_project(*project)
    return next(stage for stage in plan.stages if stage.name == "label")


def judged(stage):
    return [term for term in stage.option.time_terms if term.name.startswith("judge")]


def seconds(stage, part):
    return sum(term.value for term in judged(stage) if term.name.endswith(part))


def total(stage, name):
    return sum(term.value for term in stage.option.peak.terms if term.name.endswith(name))


@pytest.mark.parametrize("launcher", ["slurm", "ray", "subprocess"])
def test_servers_on_processors_are_planned_and_sent(smoke, launcher):
    project = smoke(POOL.format(2, ""), "resources.max_parallel_stages=1")
    shown = preview(*project, launcher, [])
    sent = {(job["stage"], job["role"]): job for job in shown.jobs}
    planned = {stage.name: stage.execution for stage in plan_project(*project).stages}
    for stage in ("label", "eval"):
        roles = planned[stage].roles
        assert {role for name, role in sent if name == stage} == set(roles)
        assert (roles["judge"].engine, roles["judge"].layout.data, roles["judge"].layout.micro_batch) == (
            "charter",
            2,
            1,
        )
        job = sent[stage, "judge"]
        (pool,) = json.loads(dict(pairwise(job["command"]))["--pools"])
        assert (pool["replicas"], pool["max_num_seqs"], pool["engine"]) == (2, 1, "charter")
        assert (job["ranks"], job["layout"]["data"], job["layout"]["micro_batch"]) == (2, 2, 1)


def test_every_server_has_the_weights(smoke):
    alone, one, three = (label_of(smoke(*words)) for words in ([], [POOL.format(1, "")], [POOL.format(3, "")]))
    assert total(three, "weights") == 2 * total(one, "weights") == 4 * total(alone, "weights"), (
        "the policy is here once"
    )
    assert total(three, "process") == 4 * total(alone, "process")


def test_servers_share_the_cores_and_pad_nothing(smoke):
    alone, one, two, wide = (
        label_of(smoke(*words))
        for words in ([], [POOL.format(1, "")], [POOL.format(2, "")], [POOL.format(2, ", max_num_seqs: 16")])
    )
    assert seconds(two, "operations") == pytest.approx(seconds(one, "operations") / 2)
    assert seconds(two, "operations") == pytest.approx(8 * seconds(wide, "operations")), "the batch has 8 questions"
    flops = [judged(stage)[1].formula.partition(" / ")[0] for stage in (one, two)]
    assert flops[0] == flops[1], "the same work, on as many cores together"
    assert seconds(alone, "operations") < seconds(two, "operations")
