"""`charter artifacts checkpoints` as a user types it; the stages are those of the counting project."""

import json


def test_checkpoints_are_listed_pinned_and_verified(work):
    empty = work.charter("artifacts", "checkpoints", "list")
    assert (empty.code, "no checkpoints yet" in empty.out) == (0, True)
    work.run()
    told = json.loads(work.charter("artifacts", "checkpoints", "list", "a", "--json").out)
    assert set(told["stages"]) == {"a"}
    newest = told["stages"]["a"][-1]
    assert (newest["verified"], newest["damage"], newest["pinned"]) == (False, None, False)
    assert work.charter("artifacts", "checkpoints", "pin", "a", str(newest["step"])).code == 0
    whole = work.charter("artifacts", "checkpoints", "verify")
    assert (whole.code, "sizes only" in whole.out) == (0, False)
    row = next(line.split() for line in reversed(whole.out.splitlines()) if line.startswith("a "))
    assert row[-2:] == ["yes", "yes"]
    file = next((work.stage_dir("a") / "state" / f"step-{newest['step']:08d}").glob("[!mp]*"))
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    damaged = work.charter("artifacts", "checkpoints", "verify", "a")
    assert damaged.code == 8
    assert f"{file.name} does not have its recorded sha256" in damaged.err
    assert str(file.parent) in damaged.err
    assert "DAMAGED" in damaged.out
    assert work.charter("artifacts", "checkpoints", "verify", "b").code == 0
    assert work.charter("artifacts", "checkpoints", "unpin", "a", str(newest["step"])).code == 0
    assert not (file.parent / "pinned").exists()
    missing = work.charter("artifacts", "checkpoints", "pin", "a", "999999")
    assert (missing.code, "has no checkpoint 999999" in missing.err) == (2, True)
    nobody = work.charter("artifacts", "checkpoints", "pin", "nobody", "1")
    assert (nobody.code, "the stages are a, b" in nobody.err) == (2, True)
