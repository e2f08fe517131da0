"""What is sent to Kubernetes: golden texts, strict schemas of every release that matters, the rules beside them."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_jobs import CASES, NODES, ONE, QUEUED, SETTINGS, SHARDS, TRAINED
from kubernetes_schemas import RELEASES, broken_rules, check, jobs_in

from charter.errors import UsageError
from charter.launch.job import safe_name
from charter.launch.kubernetes.pod import LONGEST_NAME, object_name
from charter.launch.kubernetes.scheduler import kind_of, manifest, render, secret_text

GOLDEN = Path(__file__).parents[3] / "golden" / "launch" / "kubernetes"
FREE_KEYS = {"labels", "annotations", "nodeSelector", "requests", "limits"}
"""Tables whose keys are the user's: no schema can know a typo in them."""
INVALID = (jsonschema.ValidationError, kubernetes_validate.ValidationError, AssertionError)


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_golden_one(name):
    golden = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    assert render(*CASES[name]) == golden, "look at it, then run tests/golden/kubernetes_manifests.py"


@pytest.mark.parametrize("name", CASES)
def test_the_object_passes_strict_schemas(name):
    check(yaml.safe_load(render(*CASES[name])))


def places(value, path=()):
    """Paths of all keys that a schema knows."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not (path and path[-1] in FREE_KEYS):
                yield (*path, key)
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def with_typo(item, path):
    """A copy in which one key has one letter too many."""
    changed = copy.deepcopy(item)
    table = changed
    for step in path[:-1]:
        table = table[step]
    table[f"{path[-1]}x"] = table.pop(path[-1])
    return changed


@pytest.mark.parametrize("name", CASES)
def test_every_typo_is_caught(name):
    item = manifest(*CASES[name])
    paths = {tuple(0 if isinstance(step, int) else step for step in path): path for path in places(item)}
    assert len(paths) > 40
    for path in paths.values():
        try:
            check(with_typo(item, path), RELEASES[-1:])
        except (*INVALID, KeyError):
            continue
        pytest.fail(f"nobody noticed {'.'.join(map(str, path))}x")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda job: job.update(podReplacementPolicy="TerminatingOrFailed"), "podReplacementPolicy"),
        (lambda job: job.pop("backoffLimitPerIndex"), "FailIndex"),
        (lambda job: job["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"].reverse(), "ordered"),
        (lambda job: job["template"]["spec"].update(restartPolicy="OnFailure"), "Never"),
        (lambda job: job["template"]["spec"]["volumes"].pop(), "without volumes"),
    ],
)
def test_what_only_the_server_would_refuse_is_refused_here(change, word):
    item = manifest(*CASES["indexed_job"])
    assert not list(broken_rules(item))
    change(item["spec"])
    assert any(word in broken for broken in broken_rules(item))


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=90)


@given(
    run=texts,
    stage=texts,
    labels=st.dictionaries(texts, texts, max_size=6),
    nodes=st.integers(1, 3),
    cpus=st.integers(1, 200),
)
def test_whatever_a_project_is_called_the_object_is_valid(run, stage, labels, nodes, cpus):
    name = safe_name(f"charter-{run}-{stage}-ab12")
    job = replace(ONE, name=name, run=run, stage=stage, labels=labels, nodes=nodes, cpus_per_node=cpus)
    check(manifest(job, QUEUED), RELEASES[-1:])


@given(first=st.text("abc-", min_size=30, max_size=63), last=st.text("abc", min_size=1, max_size=30))
def test_long_names_stay_apart(first, last):
    one, other = safe_name(f"c-{first}{last}"), safe_name(f"c-{first}{last}"[::-1])
    assert len(object_name(one)) <= LONGEST_NAME
    assert (object_name(one) == object_name(other)) == (one == other)


def test_shards_are_one_object_however_many_they_are():
    spec = manifest(SHARDS, QUEUED)["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (1000, 1000, "Indexed")
    assert "backoffLimit" not in spec, "one shard that fails would count against all"


@pytest.mark.parametrize("word", ["49689e12", "1e3", "0x1F", "0o17", "017", "1_000", ".5", "-1", "+2", "2026-01-01"])
def test_no_word_is_a_number_to_another_reader(word):
    job = replace(ONE, command=("python", "--token", word), environment={"TOKEN": word}, labels={"tag": word})
    lines = [line.strip() for line in render(job, SETTINGS).splitlines()]
    assert f"- '{word}'" in lines
    assert f"value: '{word}'" in lines
    assert not [line for line in lines if line.endswith(f" {word}")], "tokens of jobs are hexadecimal: some are like it"


def test_a_lost_node_is_left_in_under_a_minute():
    newest_controller_seconds = 50
    for job in jobs_in(manifest(NODES, QUEUED)):
        waits = [
            t["tolerationSeconds"] for t in job["spec"]["template"]["spec"]["tolerations"] if "tolerationSeconds" in t
        ]
        assert len(waits) == 2
        assert newest_controller_seconds + max(waits) < 60


def test_kubernetes_ends_what_the_agent_has_not_stopped_by_the_time_limit():
    [job] = jobs_in(manifest(NODES, QUEUED))
    pod = job["spec"]["template"]["spec"]
    assert pod["activeDeadlineSeconds"] == NODES.time_limit_seconds
    assert pod["terminationGracePeriodSeconds"] == NODES.stop_before_seconds


def test_no_secret_stands_in_a_text_and_no_reference_of_another_machine():
    text = render(*CASES["indexed_job"])
    variables = {v["name"]: v for v in yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert variables["JUDGE_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "judge", "key": "key", "optional": False}
    assert variables["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "hub"
    for reference in ("secret:judge", "judge/a/b", "vault:a/b"):
        with pytest.raises(UsageError, match=r"launch\.kubernetes\.secrets"):
            render(replace(SHARDS, secrets={"JUDGE_KEY": reference}), SETTINGS)


def test_a_value_of_this_machine_comes_from_a_secret_of_the_job():
    job = replace(ONE, secrets={"JUDGE_KEY": "env:JUDGE_KEY", "OTHER": "secret:judge/key"})
    secret = json.loads(secret_text(job, SETTINGS, {"JUDGE_KEY": "hunter2"}))
    for release in RELEASES:
        kubernetes_validate.validate(secret, release, strict=True)
    [container] = manifest(job, SETTINGS)["spec"]["template"]["spec"]["containers"]
    references = {v["name"]: v["valueFrom"]["secretKeyRef"] for v in container["env"] if "secretKeyRef" in str(v)}
    assert references["JUDGE_KEY"]["name"] == secret["metadata"]["name"] == manifest(job, SETTINGS)["metadata"]["name"]
    assert references["OTHER"]["name"] == "judge"


def test_a_secret_of_the_namespace_stands_in_for_one_of_this_machine():
    settings = replace(SETTINGS, secrets={"JUDGE_KEY": "judge/key"})
    assert "env:JUDGE_KEY" not in render(replace(ONE, secrets={"JUDGE_KEY": "env:JUDGE_KEY"}), settings)


@pytest.mark.parametrize(
    ("job", "settings", "words"),
    [
        (ONE, replace(SETTINGS, image=None), "launch.kubernetes.image"),
        (ONE, replace(SETTINGS, volume_claim=None), "launch.kubernetes.volume_claim"),
        (ONE, replace(SETTINGS, mount_path="/elsewhere"), "launch.kubernetes.mount_path"),
        (NODES, replace(SETTINGS, shape="job"), "shape: auto, jobset or trainjob"),
        (replace(SHARDS, nodes=2), SETTINGS, "num_nodes: 1"),
        (TRAINED, replace(QUEUED, shape="trainjob"), "priorityClassName"),
    ],
)
def test_what_cannot_be_sent_says_what_to_write(job, settings, words):
    with pytest.raises(UsageError, match=words):
        render(job, settings)


@pytest.mark.parametrize(
    ("job", "shape", "kind"),
    [(ONE, "auto", "job"), (SHARDS, "trainjob", "job"), (NODES, "auto", "jobset"), (ONE, "jobset", "jobset"),
     (TRAINED, "trainjob", "trainjob"), (replace(ONE, spare_nodes=1), "auto", "jobset")],
)  # fmt: skip
def test_the_kind_follows_the_job(job, shape, kind):
    assert kind_of(job, replace(SETTINGS, shape=shape)) == kind


def test_spot_nodes_of_every_cloud_with_the_accelerator_and_without_the_excluded_ones():
    [job] = jobs_in(manifest(NODES, SETTINGS))
    terms = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    keys = [tuple(e["key"] for e in term["matchExpressions"]) for term in terms["nodeSelectorTerms"]]
    assert len(set(keys)) == 2 * 4, "NVIDIA's or GKE's label, and four clouds"
    assert all(key[-1] == "kubernetes.io/hostname" for key in keys)


def test_own_node_selector_replaces_what_the_catalog_knows():
    settings = replace(SETTINGS, node_selector={"pool": "h100"})
    [job] = jobs_in(manifest(replace(NODES, use_spot=False, exclude_nodes=()), settings))
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "h100"}
    assert "affinity" not in pod
