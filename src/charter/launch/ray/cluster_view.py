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


def why_waiting(nodes: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> str:
    """Return why a task is not placed: `Resources` when it must wait for others, else what the cluster has not.

    >>> nodes = [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 4.0}}]
    >>> asked = {"resources_per_task": {"CPU": 1, "GPU": 8}, "tasks": {"nodes": 1}, "exclude_nodes": []}
    >>> why_waiting(nodes, asked)
    'Infeasible: no node has 8 GPU (the most is 0)'
    >>> why_waiting(nodes, {**asked, "resources_per_task": {"CPU": 1}, "tasks": {"nodes": 2}})
    'Infeasible: 2 nodes with 1 CPU are asked for, and the cluster has 1'
    """
    resources: Mapping[str, float] = request["resources_per_task"]
    left_out = matching_ids(nodes, request["exclude_nodes"])
    living = [node["Resources"] for node in nodes if node["Alive"] and node["NodeID"] not in left_out]
    fitting = sum(1 for have in living if all(have.get(name, 0) >= amount for name, amount in resources.items()))
    wanted = request["tasks"].get("nodes", 1)
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


def draining() -> set[str]:
    """Ids of nodes that have been told to leave, by an autoscaler or an administrator."""
    import ray

    return set(ray._private.state.state.get_draining_nodes())
