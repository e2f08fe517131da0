"""`charter artifacts export` as a user types it; the stages are those of the counting project."""

import json


def test_a_finished_stage_is_exported_with_card_and_cost(work, tmp_path):
    target = tmp_path / "made"
    refused = work.charter("artifacts", "export", "a", str(target))
    assert refused.code == 2
    assert "stage a is pending (never run); `charter run` finishes it" in refused.err
    work.run()
    done = work.charter("artifacts", "export", "a", str(target), "--license", "mit")
    assert done.code == 0, done.err
    source = work.stage_dir("a") / "outputs" / "model" / "value.txt"
    assert (target / "value.txt").read_bytes() == source.read_bytes()
    assert "license: mit" in (target / "README.md").read_text()
    cost = json.loads((target / "cost.json").read_text())
    assert (cost["stage"], cost["attempts"]) == ("a", 1)
    assert cost["seconds"] > 0
    again = work.charter("artifacts", "export", "a", str(target))
    assert again.code == 2
    assert "exists already" in again.err
    assert work.charter("artifacts", "export", "nobody", str(tmp_path / "x")).code == 2
    source.write_text("0")
    damaged = work.charter("artifacts", "export", "a", str(tmp_path / "y"))
    assert damaged.code in (2, 8)
    assert "damaged" in damaged.err
    assert not (tmp_path / "y").exists()
