"""Strict offline checks of Kubernetes objects: unknown fields are errors, everywhere.

Core objects by `kubernetes-validate`, which carries the schemas of every release; JobSet and TrainJob by the models of
`kubeflow-trainer-api`, generated from the OpenAPI of those projects, as JSON Schemas that allow nothing more. What
schemas cannot say (CEL rules, webhooks, the API server's own validation) is in `broken_rules`, as far as it concerns
what Charter writes.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
from kubernetes_validate import utils

RELEASES = ("1.31", "1.34", "1.37")
"""Of the core schemas: the first in which podFailurePolicy is stable, one between, the newest that is known."""
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
"""The models have an empty object for it: their generator does not know that it is written as a text."""
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")

utils.schema_contents = cache(utils.schema_contents)
"""The library reads the files of a schema anew for every object that it looks at."""


def check(item: dict[str, Any], releases: tuple[str, ...] = RELEASES) -> None:
    """Raise at the first field that a schema or a rule does not allow."""
    if item["kind"] != "Job":
        validator_of(item["kind"]).validate(item)
    for job in jobs_in(item):
        for release in releases:
            kubernetes_validate.validate(job, release, strict=True)
    broken = list(broken_rules(item))
    assert not broken, broken


@cache
def validator_of(kind: str) -> jsonschema.Draft202012Validator:
    """A validator of a custom resource that allows no further fields."""
    from kubeflow_trainer_api import models

    model = {"JobSet": models.JobsetV1alpha2JobSet, "TrainJob": models.TrainerV1alpha1TrainJob}[kind]
    schema: dict[str, Any] = model.model_json_schema(by_alias=True)
    schema["$defs"]["IoK8sApimachineryPkgApiResourceQuantity"] = {"type": "string", "pattern": QUANTITY}
    return jsonschema.Draft202012Validator(_closed(schema))


def jobs_in(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The Jobs that an object is or makes."""
    if item["kind"] == "Job":
        yield item
    if item["kind"] == "JobSet":
        for replicated in item["spec"]["replicatedJobs"]:
            yield {"apiVersion": "batch/v1", "kind": "Job", **replicated["template"]}


def broken_rules(item: dict[str, Any]) -> Iterator[str]:
    """Rules that stand outside the schemas, and that the object breaks."""
    yield from _metadata_rules(item["metadata"], longest=63)
    for job in jobs_in(item):
        yield from _job_rules(job["spec"])
        yield from _metadata_rules(job["spec"]["template"]["metadata"], longest=63)
    if item["kind"] == "JobSet":
        spec = item["spec"]
        for replicated in spec["replicatedJobs"]:
            pods = replicated["template"]["spec"]["parallelism"]
            pod = f"{item['metadata']['name']}-{replicated['name']}-{replicated['replicas'] - 1}-{pods - 1}-xxxxx"
            if len(pod) > 63 or not NAME.fullmatch(pod):
                yield f"the JobSet's webhook refuses pod names like {pod}"
            for rule in spec["failurePolicy"]["rules"]:
                if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"]):
                    yield f"a failure rule cannot be called {rule['name']}"
    if item["kind"] == "TrainJob":
        trainer = item["spec"]["trainer"]
        if reserved := [v["name"] for v in trainer["env"] if v["name"].startswith("PET_")]:
            yield f"Kubeflow Trainer keeps {reserved} to itself"
        for patch in item["spec"]["runtimePatches"]:
            jobs = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
            for container in (c for job in jobs for c in job["template"]["spec"]["template"]["spec"]["containers"]):
                if container["name"] == "node" and "env" in container:
                    yield "variables of the container `node` stand in trainer.env only"


def _job_rules(spec: dict[str, Any]) -> Iterator[str]:
    """The API server's validation of a JobSpec (pkg/apis/batch/validation), as far as Charter writes it."""
    pod, policy = spec["template"]["spec"], spec.get("podFailurePolicy")
    indexed = spec.get("completionMode") == "Indexed"
    if policy and pod["restartPolicy"] != "Never":
        yield "podFailurePolicy needs restartPolicy Never"
    if policy and spec.get("podReplacementPolicy", "Failed") != "Failed":
        yield "podFailurePolicy needs podReplacementPolicy Failed"
    if "backoffLimitPerIndex" in spec and not indexed:
        yield "backoffLimitPerIndex needs an Indexed Job"
    if indexed and spec["completions"] < 1:
        yield "an Indexed Job needs completions"
    if indexed and spec["completions"] > 100_000:
        yield "an Indexed Job has at most 100,000 completions"
    for rule in (policy or {}).get("rules", ()):
        if rule["action"] == "FailIndex" and "backoffLimitPerIndex" not in spec:
            yield "FailIndex needs backoffLimitPerIndex"
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            yield "a rule is of exit codes or of pod conditions"
        codes = rule.get("onExitCodes", {}).get("values", [1])
        if codes != sorted(set(codes)) or 0 in codes or len(codes) > 255:
            yield f"exit codes are ordered, once each, and not 0: {codes}"
        names = {container["name"] for container in pod["containers"]}
        if rule.get("onExitCodes", {}).get("containerName", min(names)) not in names:
            yield "a rule names a container that there is not"
    volumes, mounts = {v["name"] for v in pod["volumes"]}, {m["name"] for m in pod["containers"][0]["volumeMounts"]}
    if not mounts <= volumes:
        yield f"mounts without volumes: {mounts - volumes}"
    names = [variable["name"] for variable in pod["containers"][0]["env"]]
    if len(names) != len(set(names)):
        yield "a variable stands twice"


def _metadata_rules(metadata: dict[str, Any], *, longest: int) -> Iterator[str]:
    if "name" in metadata and (len(metadata["name"]) > longest or not NAME.fullmatch(metadata["name"])):
        yield f"not a name: {metadata['name']}"
    for key, value in metadata["labels"].items():
        prefix, _, name = key.rpartition("/")
        if len(name) > 63 or not LABEL_NAME.fullmatch(name) or len(prefix) > 253:
            yield f"not the key of a label: {key}"
        if len(value) > 63 or not LABEL_VALUE.fullmatch(value):
            yield f"not the value of a label: {value!r}"
    for key in metadata["annotations"]:
        name = key.rpartition("/")[2]
        if len(name) > 63 or not LABEL_NAME.fullmatch(name):
            yield f"not the key of an annotation: {key}"


def _closed(schema: Any) -> Any:
    """A schema whose objects have the fields it lists and no others."""
    if isinstance(schema, dict):
        closed = {key: _closed(value) for key, value in schema.items()}
        if "properties" in closed and closed.get("type") == "object":
            closed["additionalProperties"] = False
        return closed
    return [_closed(value) for value in schema] if isinstance(schema, list) else schema
