import json

from charter.launch.node_checks import WAIT_SECONDS, meet, read_reports, receiving, sending_rate
from charter.spec.launching import NodeChecks


def test_a_node_measures_what_it_sends_to_the_first_one(tmp_path):
    with receiving(tmp_path, "1-a"):
        assert sending_rate(tmp_path, "1-a")["network_bytes_per_second"] > 0


def test_without_a_first_node_there_is_no_rate_and_the_wait_ends(tmp_path):
    clock = [0.0]

    def pause(seconds: float) -> None:
        clock[0] += seconds

    assert sending_rate(tmp_path, "1-a", pause=pause, now=lambda: clock[0]) == {}
    assert WAIT_SECONDS <= clock[0] < WAIT_SECONDS + 1


def test_a_first_node_that_is_gone_gives_no_rate(tmp_path):
    with receiving(tmp_path, "1-a"):
        pass
    assert sending_rate(tmp_path, "1-a") == {}
    (tmp_path / "sink-1-b.json").write_text(json.dumps({"host": "127.0.0.1"}))
    assert sending_rate(tmp_path, "1-b") == {}


def test_a_node_alone_opens_no_port(tmp_path):
    meet(tmp_path, NodeChecks(disk_bytes=1), start="1-a", rank=0, needed=1, expected=1)
    assert not list(tmp_path.glob("sink-*"))
    assert read_reports(tmp_path, "1-a")[0].rates == {}
