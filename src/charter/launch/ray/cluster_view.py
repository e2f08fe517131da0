"""View of a Ray cluster's nodes for the keeper: which died and why, which leave, what fits nowhere.

Used inside the cluster, where Charter may not be installed.
"""

import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PREEMPTED = 3
"""`AUTOSCALER_DRAIN_PREEMPTED` of Ray's `NodeDeathInfo.Reason`."""
ANSWER_SECONDS = 5.0


def death_of(nodes: Sequence[Mapping[str, Any]], node_ids: Iterable[str]) -> tuple[str, str]:
    """Cause and word of the death of one of these nodes; two empty texts while all of them live.

    >>> death_of([{"NodeID": "a", "Alive": False, "DeathReason": 2}], {"a"})
    ('node_lost', 'NODE_DIED')
    """
    wanted = set(node_ids)
    for node in nodes:
        if node["NodeID"] in wanted and not node["Alive"]:
            taken = node.get("DeathReason") == PREEMPTED
            return ("preempted", "PREEMPTED") if taken else ("node_lost", "NODE_DIED")
    return "", ""


def all_answer(nodes: Sequence[Mapping[str, Any]], node_ids: Iterable[str]) -> bool:
    """Return True if the raylets of these nodes take connections; a killed one does not, long before Ray says so.

    >>> all_answer([{"NodeID": "a", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1}], {"a"})
    False
    """
    wanted = set(node_ids)
    for node in nodes:
        if node["NodeID"] in wanted:
            try:
                socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), ANSWER_SECONDS).close()
            except OSError:
                return False
    return True


def matching_ids(nodes: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """The ids of living nodes that are meant by a name: `HOST/ID` as in a job's state, an id, a host, an address.

    >>> matching_ids([{"NodeID": "ab12", "Alive": True, "NodeManagerHostname": "h", "NodeName": "n"}], ["h/ab"])
    ['ab12']
    """
    wanted = tuple(names)
    ids = []
    for node in nodes:
        called = {node["NodeID"], node.get("NodeName"), node.get("NodeManagerHostname"), node.get("NodeManagerAddress")}
        by_id = any(node["NodeID"].startswith(name.rpartition("/")[2]) for name in wanted if "/" in name)
        if node["Alive"] and (by_id or called & set(wanted)):
            ids.append(node["NodeID"])
    return sorted(ids)


def needs_of(request: Mapping[str, Any]) -> tuple[int, Mapping[str, float]]:
    """The nodes of one unit of a job and what it takes of each: its tasks do, or the engine that its task drives.

    >>> needs_of({"resources_per_task": {"CPU": 4, "GPU": 2}, "tasks": {"nodes": 3}})
    (3, {'CPU': 4, 'GPU': 2})
    >>> taken = {"nodes": 2, "resources_per_node": {"GPU": 8}}
    >>> needs_of({"resources_per_task": {"CPU": 1}, "tasks": {"nodes": 1, "engine_takes": taken}})
    (2, {'GPU': 8})
    """
    if (taken := request["tasks"].get("engine_takes")) is not None:
        return taken["nodes"], taken["resources_per_node"]
    return request["tasks"].get("nodes", 1), request["resources_per_task"]


def has_room(
    nodes: Sequence[Mapping[str, Any]],
    request: Mapping[str, Any],
    claims: Iterable[tuple[int, float]],
    available: Mapping[str, Mapping[str, float]],
) -> bool:
    """Return True if the accelerators of a unit are free beside those that others have been promised.

    An engine takes its accelerators a while after it was started, and until then Ray counts them as free. `claims` are
    nodes and accelerators of each; of a unit that drives an engine `available`, Ray's own count by node, has to agree.

    >>> nodes = [{"NodeID": name, "Alive": True, "Resources": {"GPU": 8.0}} for name in ("a", "b", "c")]
    >>> free = {name: {"GPU": 8.0} for name in ("a", "b", "c")}
    >>> taken = {"nodes": 2, "resources_per_node": {"GPU": 8}}
    >>> driver = {"tasks": {"nodes": 1, "engine_takes": taken}, "resources_per_task": {"CPU": 1}}
    >>> [has_room(nodes, driver, [(count, 8.0)], free) for count in (1, 2)]
    [True, False]
    >>> has_room(nodes, driver, [], {**free, "a": {}, "b": {"GPU": 7.0}})
    False
    """
    wanted, resources = needs_of(request)
    living = [node for node in nodes if node["Alive"]]
    left = sorted((node["Resources"].get("GPU", 0.0) for node in living), reverse=True)
    for count, each in claims:
        left = sorted([have - each for have in left[:count]] + left[count:], reverse=True)
    if sum(have >= resources["GPU"] for have in left) < wanted:
        return False
    if "engine_takes" not in request["tasks"]:
        return True
    fitting = [node for node in living if all(node["Resources"].get(name, 0) >= it for name, it in resources.items())]
    return sum(available.get(node["NodeID"], {}).get("GPU", 0) >= resources["GPU"] for node in fitting) >= wanted


def other_accelerators(nodes: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> str:
    """Return the name of a node with accelerators of another kind, which an engine might take; empty where none has.

    >>> node = {"NodeID": "ab12cd", "Alive": True, "NodeManagerHostname": "h", "Resources": {"GPU": 8.0}}
    >>> wanted = {"GPU": 8, "accelerator_type:H100": 0.001}
    >>> other_accelerators([node], {"tasks": {"engine_takes": {"nodes": 1, "resources_per_node": wanted}}})
    'h/ab12cd'
    """
    _, resources = needs_of(request)
    kinds = [name for name in resources if name.startswith("accelerator_type:")]
    for node in nodes:
        have = node["Resources"]
        if node["Alive"] and have.get("GPU") and not all(name in have for name in kinds):
            return f"{node['NodeManagerHostname']}/{node['NodeID'][:12]}"
    return ""


def why_waiting(nodes: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> str:
    """Return why a task is not placed: `Resources` when it must wait for others, else what the cluster has not.

    >>> nodes = [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 4.0}}]
    >>> asked = {"resources_per_task": {"CPU": 1, "GPU": 8}, "tasks": {"nodes": 1}, "exclude_nodes": []}
    >>> why_waiting(nodes, asked)
    'Infeasible: no node has 8 GPU (the most is 0)'
    >>> why_waiting(nodes, {**asked, "resources_per_task": {"CPU": 1}, "tasks": {"nodes": 2}})
    'Infeasible: 2 nodes with 1 CPU are asked for, and the cluster has 1'
    """
    wanted, resources = needs_of(request)
    left_out = matching_ids(nodes, request["exclude_nodes"])
    living = [node["Resources"] for node in nodes if node["Alive"] and node["NodeID"] not in left_out]
    fitting = sum(1 for have in living if all(have.get(name, 0) >= amount for name, amount in resources.items()))
    if fitting >= wanted:
        return "Resources"
    if not fitting:
        for name, amount in resources.items():
            most = max((have.get(name, 0) for have in living), default=0)
            if most < amount:
                return f"Infeasible: no node has {amount:g} {name} (the most is {most:g})"
    what = ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
    are = "nodes with" if wanted > 1 else "node with"
    return f"Infeasible: {wanted} {are} {what} are asked for, and the cluster has {fitting}"


def available() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of each living node, by its id and Ray's own count."""
    import ray

    free: Mapping[str, Mapping[str, float]] = ray._private.state.available_resources_per_node()
    return free


def draining() -> set[str]:
    """Ids of nodes that have been told to leave, by an autoscaler or an administrator."""
    import ray

    return set(ray._private.state.state.get_draining_nodes())
