"""The keeper without a cluster: what the cluster cannot say at one moment it is asked again."""

import asyncio

from charter.launch.ray import keeper
from charter.launch.ray.job_records import JobRecord, UnitStart


def test_a_cluster_that_does_not_answer_once_is_watched_on(monkeypatch):
    """Else no node's end would be noticed from then on."""
    request = {"name": "x", "tasks": {"nodes": 1}, "resources_per_task": {"CPU": 1}, "exclude_nodes": []}
    asked = []

    def draining():
        asked.append(1)
        if len(asked) == 1:
            raise ConnectionResetError("the head starts again")
        return {"a"}

    async def noticed():
        held = keeper.Keeper()
        record = held._records["x"] = JobRecord.of(request)
        start = UnitStart(restart=0, node_ids={"a"}, started_at=1.0)
        record.units[0].starts.append(start)
        watching = asyncio.create_task(held._watch())
        news = asyncio.create_task(start.news.wait())
        await asyncio.wait([watching, news], return_when=asyncio.FIRST_COMPLETED, timeout=300)
        watching.cancel()
        return start.notice

    nodes = [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 4.0}}]
    monkeypatch.setattr(keeper, "draining", draining)
    monkeypatch.setattr(keeper, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(keeper.ray, "nodes", lambda: nodes)
    assert asyncio.run(noticed())
