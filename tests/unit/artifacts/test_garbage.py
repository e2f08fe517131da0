from charter.artifacts.stage_dir import StageDir
from charter.run.copies import find_garbage, remove_garbage


def test_what_crashes_left_is_found_with_its_size_and_nothing_else(make_stage, tmp_path):
    run = tmp_path / "run"
    stages = run / "stages"
    stages.mkdir(parents=True)
    stage_dir = make_stage().rename(stages / "sft-aaaaaaaa")
    StageDir(stage_dir).save_checkpoint(1, lambda out: (out / "w").write_bytes(b"x" * 10) and None)
    for name in (".tmp-outputs-1", ".gc-outputs-2", "outputs.damaged-1", "state/step-00000009.undone-2"):
        (stage_dir / name).mkdir()
        (stage_dir / name / "f").write_bytes(b"y" * 7)
    (stage_dir / "record.json.damaged-1").write_bytes(b"z" * 3)
    (stages / "notes").write_text("no stage")
    (tmp_path / "elsewhere" / ".tmp-of-others").mkdir(parents=True)
    (stage_dir / "link").symlink_to(tmp_path / "elsewhere")
    (stages / "sft-bbbbbbbb").mkdir()
    (stages / "sft-bbbbbbbb" / ".tmp-inside").write_bytes(b"q" * 5)
    before = {
        path for path in stage_dir.rglob("*") if not any(word in str(path) for word in (".tmp", ".gc", "ed-", "ne-"))
    }
    found = find_garbage(run, stages=[stages / ".." / "stages" / stage_dir.name])
    told = {(item.path.relative_to(stages).as_posix(), item.kind, item.bytes) for item in found}
    assert told == {
        ("sft-aaaaaaaa/.gc-outputs-2", "half-removed", 7),
        ("sft-aaaaaaaa/.tmp-outputs-1", "half-written", 7),
        ("sft-aaaaaaaa/outputs.damaged-1", "damaged", 7),
        ("sft-aaaaaaaa/record.json.damaged-1", "damaged", 3),
        ("sft-aaaaaaaa/state/step-00000009.undone-2", "undone", 7),
        ("sft-bbbbbbbb", "other results", 5),
    }
    for item in found:
        remove_garbage(item)
    assert find_garbage(run, stages=[stage_dir]) == []
    assert {path for path in stage_dir.rglob("*")} == before
    assert find_garbage(tmp_path / "nothing", stages=[]) == []
