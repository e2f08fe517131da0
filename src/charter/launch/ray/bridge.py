"""Talks with a Ray cluster for a supervisor: `python -m charter.launch.ray.bridge`, JSON lines in and out.

A process of its own, since a Ray driver takes over signal handlers, holds threads, and ends its process when its
cluster goes. It ends when its input does, so never outlives who started it.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from charter.launch.ray.request import KEEPER, NAMESPACE

CALL_SECONDS = 60.0
"""How long an answer may take, with the time in which a keeper that died is there again."""
AGAIN_SECONDS = 0.5


def main(arguments: list[str] | None = None) -> None:
    """Connect, say so, and answer requests one by one until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    address = parser.parse_args(arguments).address
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    try:
        bridge = Bridge(address)
    except Exception as error:
        print(json.dumps({"error": _told(error), "kind": type(error).__name__}), file=answers)
        sys.exit(1)
    print(json.dumps({"result": "connected"}), file=answers)
    for line in sys.stdin:
        print(json.dumps(bridge.answer(json.loads(line))), file=answers)
    # Everything was answered, and nothing in the cluster belongs to this process: Ray's farewell takes a second.
    os._exit(0)


class Bridge:
    """A connection to the keeper of a cluster, which it starts where there is none."""

    def __init__(self, address: str) -> None:
        import ray

        from charter.launch.ray import cluster_view, job_records, keeper, node_task, task_outcome

        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, include_dashboard=False
        )
        # By value: Ray's Python on the nodes need not have Charter; the command names the one that has.
        for module in (cluster_view, job_records, keeper, node_task, task_outcome):
            ray.cloudpickle.register_pickle_by_value(module)
        self._ray = ray
        self._keeper_class, self._calls_at_once = ray.remote(keeper.Keeper), keeper.CALLS_AT_ONCE
        self._keeper = self._found()
        self._verbs: Mapping[str, Callable[..., Any]] = {
            "submit": lambda request, secrets: self._call("submit", request, secrets),
            "knows": lambda name: self._call("knows", name),
            "poll": lambda names: self._call("poll", names),
            "attempts": lambda name: self._call("attempts", name),
            "log_path": lambda name: self._call("log_path", name),
            "cancel": lambda name: self._call("cancel", name),
            "nodes": lambda: [_node(node) for node in ray.nodes()],
        }

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a message asks; what goes wrong is an answer too."""
        try:
            return {"id": message["id"], "result": self._verbs[message["verb"]](*message["arguments"])}
        except Exception as error:
            return {"id": message["id"], "error": _told(error), "kind": type(error).__name__}

    def _found(self) -> Any:
        """The keeper, on the head node where there is one: it is lost with the cluster only."""
        on_head = {"node:__internal_head__": 0.001} if "node:__internal_head__" in self._ray.cluster_resources() else {}
        return self._keeper_class.options(
            name=KEEPER,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=self._calls_at_once,
            resources=on_head,
        ).remote()

    def _call(self, method: str, *arguments: Any) -> Any:
        """Ask the keeper; one that is being started again is asked once more, since every request may be repeated."""
        gone = (self._ray.exceptions.ActorDiedError, self._ray.exceptions.ActorUnavailableError)
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            left = max(AGAIN_SECONDS, deadline - time.monotonic())
            try:
                return self._ray.get(getattr(self._keeper, method).remote(*arguments), timeout=left)
            except gone:
                if time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN_SECONDS)
                self._keeper = self._found()


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": f"{node['NodeManagerHostname']}/{node['NodeID'][:12]}",
        "alive": node["Alive"],
        "resources": {name: amount for name, amount in node["Resources"].items() if not name.startswith("node:")},
    }


def _told(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return "\n".join(lines[:6])[:1000]


if __name__ == "__main__":
    main()
