"""An engine's output on its way into the stage's log."""

from charter.hosted.engine_process import _MOST_BYTES, LogPump


def test_a_character_written_in_two_parts_arrives_as_one(tmp_path, capsys):
    log = tmp_path / "log.txt"
    pump = LogPump(log)
    pump.pump()
    first, second = "Straße".encode()[:5], "Straße".encode()[5:]
    log.write_bytes(first)
    pump.pump()
    log.write_bytes(first + second)
    pump.pump()
    assert capsys.readouterr().out == "Straße"


def test_the_last_look_passes_on_all_of_a_long_output(tmp_path, capsys):
    log = tmp_path / "log.txt"
    log.write_text("x" * (2 * _MOST_BYTES + 3))
    pump = LogPump(log)
    pump.pump()
    assert len(capsys.readouterr().out) == _MOST_BYTES
    pump.pump(to_end=True)
    assert len(capsys.readouterr().out) == _MOST_BYTES + 3
