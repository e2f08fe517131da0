"""Edges of a pipeline whose stages somebody else starts, and Kubeflow's tasks."""

import itertools

import yaml
from managed_case import project_on

from charter.launch.rendered import TARGETS, task_of, texts_for
from charter.spec.graph import execution_order, stage_inputs


def edges(project):
    return {name: task_of(project, name, TARGETS["kfp"]).after for name in execution_order(project)}


def test_stages_wait_for_what_they_read_and_nothing_else_where_they_may_run_side_by_side(tmp_path):
    project = project_on("kfp", tmp_path)
    assert edges(project) == {name: stage_inputs(project, name) for name in execution_order(project)}


def test_one_at_a_time_is_a_chain_that_still_has_every_edge(tmp_path):
    project = project_on("kfp", tmp_path, parallel=1)
    chain = edges(project)
    order = list(chain)
    assert all(before in chain[name] for before, name in itertools.pairwise(order))
    assert all(set(stage_inputs(project, name)) <= set(chain[name]) for name in order)
    assert chain != edges(project_on("kfp", tmp_path, parallel=4)), "the case has stages that could run side by side"


def test_every_task_of_a_pipeline_has_its_component_and_executor(tmp_path):
    spec, platform = yaml.safe_load_all(texts_for(project_on("kfp", tmp_path), "kfp")["pipeline.yaml"])
    tasks = spec["root"]["dag"]["tasks"]
    labels = {component["executorLabel"] for component in spec["components"].values()}
    assert {task["componentRef"]["name"] for task in tasks.values()} == set(spec["components"])
    assert labels == set(spec["deploymentSpec"]["executors"])
    assert labels == set(platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"])
    for task in tasks.values():
        assert set(task.get("dependentTasks", ())) <= set(tasks)
        assert task["cachingOptions"] == {}, "whether a stage is done is Charter's to say"
