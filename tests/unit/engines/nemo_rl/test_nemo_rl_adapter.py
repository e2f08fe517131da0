"""Checkpoints as NeMo RL 0.6.0 writes them, killed between any two files and in the midst of each."""

import json
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from engine_stages import handover, sft, sharded

from charter.engines.common.adapter import EngineCheckpoint
from charter.engines.nemo_rl.adapter import NemoRlAdapter
from charter.errors import StageError

ADAPTER = NemoRlAdapter()
Files = list[tuple[str, bytes]]


def torch_file() -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", "loader" * 20)
    return buffer.getvalue()


def tensor_file(size: int = 64) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0" * size


def files(step: int) -> Files:
    """In the order of `init_tmp_checkpoint`, `save_checkpoint`, the loader's state."""
    weights = "policy/weights/model"
    return [
        ("training_info.json", json.dumps({"epoch": 0, "step": step, "total_steps": step}).encode()),
        ("config.yaml", b"policy: {}\n"),
        (f"{weights}/shard-00001-model-00001-of-00001.safetensors", tensor_file()),
        (f"{weights}/consolidated/model-00001-of-00001.safetensors", tensor_file()),
        ("policy/optimizer/optim/__0_0.distcp", b"state"),
        ("policy/optimizer/optim/.metadata", b"metadata"),
        ("policy/tokenizer/tokenizer.json", b"{}"),
        ("train_dataloader.pt", torch_file()),
    ]


def write(directory: Path, content: Files) -> None:
    for name, data in content:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)


def saved(work: Path, step: int) -> Path:
    place = work / "checkpoints" / f"step_{step}"
    write(place, files(step))
    return place


def kills(content: Files) -> Iterator[Files]:
    for count, (name, data) in enumerate(content):
        yield content[:count]
        for length in {0, 1, len(data) // 2, len(data) - 1}:
            yield [*content[:count], (name, data[:length])]
    yield content


def found(work: Path) -> list[int]:
    return [item.step for item in ADAPTER.checkpoints(work)]


def test_a_checkpoint_counts_when_it_has_been_renamed(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    saved(tmp_path, 5)
    for left in kills(files(10)):
        write(tmp_path / "checkpoints/tmp_step_10", left)
        assert found(tmp_path) == [5]
    (tmp_path / "checkpoints/tmp_step_10").rename(tmp_path / "checkpoints/step_10")
    assert found(tmp_path) == [5, 10]


UNSEEN = ("__0_0.distcp", "tokenizer.json")
"""Nothing says how long these are."""


def test_any_file_that_is_gone_or_cut_later_makes_it_not_whole(tmp_path: Path) -> None:
    place = saved(tmp_path, 10)
    for name, data in files(10):
        if name.endswith(UNSEEN):
            continue
        for cut in (data[: len(data) - 1], b"") if not name.endswith((".metadata", ".yaml")) else (b"",):
            write(place, files(10))
            (place / name).write_bytes(cut)
            assert found(tmp_path) == [], (name, len(cut))
        (place / name).unlink()
        if "safetensors" not in name:
            assert found(tmp_path) == [], name


def test_a_checkpoint_without_weights_or_of_another_step_is_not_whole(tmp_path: Path) -> None:
    place = saved(tmp_path, 10)
    for path in place.rglob("*.safetensors"):
        path.unlink()
    assert found(tmp_path) == []
    saved(tmp_path, 20)
    (tmp_path / "checkpoints/step_20").rename(tmp_path / "checkpoints/step_30")
    assert found(tmp_path) == []


@pytest.mark.parametrize("name", ["old_step_10", "tmp_step_10", "step_10.bak", "step_x"])
def test_other_directories_are_not_checkpoints(tmp_path: Path, name: str) -> None:
    saved(tmp_path, 10).rename(tmp_path / "checkpoints" / name)
    assert found(tmp_path) == []
    assert ADAPTER.final_step(tmp_path) is None


def test_a_resume_has_one_checkpoint_to_take(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        saved(tmp_path, step)
    (tmp_path / "checkpoints/step_20").rename(tmp_path / "kept")
    (tmp_path / "kept/manifest.json").write_text("{}")
    ADAPTER.taken(EngineCheckpoint(step=30, path=tmp_path / "checkpoints/step_30"), tmp_path)
    assert (found(tmp_path), ADAPTER.final_step(tmp_path)) == ([10], 30)
    place = Path(ADAPTER.place(tmp_path / "kept", 20, tmp_path))
    assert place == tmp_path / "checkpoints/step_20"
    assert not (place / "manifest.json").exists()
    assert [path.name for path in place.parent.iterdir()] == ["step_20"]
    assert (found(tmp_path), ADAPTER.final_step(tmp_path)) == ([20], 20)


def test_only_the_newest_taken_one_is_kept(tmp_path: Path) -> None:
    for step in (10, 20):
        saved(tmp_path, step)
    for item in list(ADAPTER.checkpoints(tmp_path)):
        ADAPTER.taken(item, tmp_path)
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["step_20"]


def test_weights_are_the_consolidated_ones(tmp_path: Path) -> None:
    model = tmp_path / "base"
    write(model, [("config.json", b"{}"), ("tokenizer.json", b"{}")])
    given = handover("nemo_rl", sft(), sharded(64))
    paths = given.paths.__class__(work=str(tmp_path), models={"init": str(model)}, data={})
    case = given.__class__(**{**vars(given), "paths": paths})
    with pytest.raises(StageError, match="no whole checkpoint"):
        ADAPTER.convert(tmp_path, case, tmp_path / "model")
    place = saved(tmp_path, 10)
    assert ADAPTER.convert(tmp_path, case, tmp_path / "model")["step"] == 10
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"config.json", "tokenizer.json", "model-00001-of-00001.safetensors"}
    (place / "policy/weights/model/consolidated/model-00001-of-00001.safetensors").unlink()
    with pytest.raises(StageError, match="no consolidated weights"):
        ADAPTER.convert(tmp_path, case, tmp_path / "other")


def test_steps_are_read_from_the_console(tmp_path: Path) -> None:
    bar = "=" * 25
    text = f"{bar} Step 2/9 {bar}\n📊 Training Results:\n  • Loss: 1.5000\n  • Total step time: 1.00s\n"
    (tmp_path / "log").write_text(text, encoding="utf-8")
    assert [step.step for step in ADAPTER.steps(tmp_path, tmp_path / "log")] == [2]
    assert list(ADAPTER.steps(tmp_path, tmp_path / "none")) == []
