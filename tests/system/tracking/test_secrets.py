"""Secrets of trackers: the real libraries fail against addresses where nobody listens, and write no secret down."""

import contextlib
import json

import pytest
from held_port import held_port

SECRET = "0123456789abcdef0123456789abcdefdeadbeef"
TRACKERS = {
    "wandb": "{wandb: {base_url: 'http://127.0.0.1:%d', api_key: env:TRACKER_SECRET}, drain: 1m}",
    "mlflow-address": "{mlflow: {uri: env:TRACKER_ADDRESS}, drain: 1m}",
    "mlflow-token": "{mlflow: {uri: 'http://127.0.0.1:%d', token: env:TRACKER_SECRET}, drain: 1m}",
}


def files_with(root, text):
    found = []
    for path in root.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a library's process may still be putting its files away
            if path.is_file() and text.encode() in path.read_bytes():
                found.append(path)
    return found


@pytest.mark.parametrize("name", TRACKERS)
def test_nothing_that_is_written_or_printed_holds_the_secret(work, undisturbed, name):
    port = held_port()
    entry = TRACKERS[name].replace("%d", str(port))
    work.edit("name: count", f"name: count\ntracking: [{entry}]")
    secrets = {"TRACKER_SECRET": SECRET, "TRACKER_ADDRESS": f"http://ann:{SECRET}@127.0.0.1:{port}"}
    done = work.run(timeout=600, **secrets)
    assert (done.code, work.outputs()) == (0, undisturbed), done.err
    (event,) = [event for event in done.events if event["event"] == "tracking_behind"]
    assert event["trackers"] == [name.partition("-")[0]]
    synced = work.charter("status", "track", "sync", **secrets)
    assert synced.code == 6
    status = work.charter("status", "track", "status", "--json", **secrets)
    assert json.loads(status.out)["trackers"][0]["failures"] > 0
    assert files_with(work.root, SECRET) == []
    assert SECRET not in done.out + done.err + synced.out + synced.err + status.out
