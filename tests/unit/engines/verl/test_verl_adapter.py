"""Checkpoints as verl 0.9.1 writes them, killed between any two files and in the midst of each."""

import json
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from engine_stages import handover, ppo, sft, sharded

from charter.engines.common.adapter import EngineCheckpoint
from charter.engines.verl.adapter import VerlAdapter, merge_command
from charter.engines.verl.mapping import render_verl
from charter.errors import StageError

WORLD = 4
ADAPTER = VerlAdapter()
Files = list[tuple[str, bytes]]


def torch_file(text: str) -> bytes:
    """`torch.save` writes a ZIP file of stored members."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", text * 20)
    return buffer.getvalue()


def shards(where: str) -> Files:
    """What `FSDPCheckpointManager.save_checkpoint` writes: the ranks' files in any order, then rank 0's."""
    kinds = ("model", "optim", "extra_state")
    names = [f"{kind}_world_size_{WORLD}_rank_{rank}.pt" for rank in range(WORLD) for kind in kinds]
    files = [(where + name, torch_file(name)) for name in names]
    config = json.dumps({"model_type": "llama", "hidden_size": 64}).encode()
    return [
        *files,
        (f"{where}huggingface/config.json", config),
        (f"{where}huggingface/tokenizer_config.json", b"{}"),
        (f"{where}fsdp_config.json", json.dumps({"FSDP_version": 2, "world_size": WORLD}).encode()),
    ]


def ppo_files(step: int, *, critic: bool = True) -> Files:
    place = f"checkpoints/global_step_{step}/"
    parts = [*shards(f"{place}actor/"), *(shards(f"{place}critic/") if critic else [])]
    return [*parts, (f"{place}data.pt", torch_file("loader")), tracker(step)]


def sft_files(step: int, *, loaders: int = WORLD) -> Files:
    """Rank 0 may name the step before the others have written their loaders."""
    place = f"checkpoints/global_step_{step}/"
    data = [(f"{place}data_{rank}.pt", torch_file(f"loader {rank}")) for rank in range(loaders)]
    return [*shards(place), data[0], tracker(step), *data[1:]]


def tracker(step: int) -> tuple[str, bytes]:
    return "checkpoints/latest_checkpointed_iteration.txt", str(step).encode()


def write(work: Path, files: Files) -> None:
    for name, content in files:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)


def kills(files: Files) -> Iterator[Files]:
    """What is on the disk when it is killed: so many whole files, and a part of the next one."""
    for count, (name, content) in enumerate(files):
        yield files[:count]
        for length in {0, 1, len(content) // 2, len(content) - 1}:
            yield [*files[:count], (name, content[:length])]


def found(work: Path) -> list[int]:
    return [item.step for item in ADAPTER.checkpoints(work)]


@pytest.fixture
def ppo_work(tmp_path: Path) -> Path:
    write(tmp_path, [("ppo.yaml", render_verl(handover("verl", ppo(), sharded(32))).files["ppo.yaml"].encode())])
    return tmp_path


@pytest.fixture
def sft_work(tmp_path: Path) -> Path:
    run = render_verl(handover("verl", sft(), sharded(64, data=4)))
    write(tmp_path, [("sft.yaml", run.files["sft.yaml"].encode())])
    return tmp_path


def killed_anywhere(work: Path, first: Files, second: Files, steps: tuple[int, int]) -> None:
    old, new = steps
    write(work, first)
    assert found(work) == [old]
    for left in kills(second):
        write(work, left)
        last = left[-1][0] if left else "nothing"
        torn_tracker = last == tracker(new)[0] and left[-1] != tracker(new)
        assert found(work) in ([[], [old]] if torn_tracker else [[old]]), last
        for name, _ in left:
            if "global_step_" in name:
                (work / name).unlink()
        write(work, [tracker(old)])
    write(work, second)
    assert found(work) == [old, new]


def test_a_ppo_checkpoint_counts_only_when_it_is_whole(ppo_work: Path) -> None:
    killed_anywhere(ppo_work, ppo_files(10), ppo_files(20), (10, 20))


def test_an_sft_checkpoint_counts_only_when_it_is_whole(sft_work: Path) -> None:
    killed_anywhere(sft_work, sft_files(10), sft_files(20), (10, 20))


def test_a_torn_tracker_names_nothing(ppo_work: Path) -> None:
    write(ppo_work, ppo_files(10))
    (ppo_work / tracker(10)[0]).write_bytes(b"")
    assert found(ppo_work) == []


def test_any_file_that_is_gone_or_cut_later_makes_it_not_whole(ppo_work: Path) -> None:
    files = ppo_files(10)
    for name, content in files[:-1]:
        write(ppo_work, files)
        (ppo_work / name).write_bytes(content[: len(content) // 2])
        if name.endswith("tokenizer_config.json"):
            continue
        assert found(ppo_work) == [], name
        (ppo_work / name).unlink()
        assert found(ppo_work) == [], name


def test_what_the_engine_has_thinned_out_is_not_told(ppo_work: Path) -> None:
    write(ppo_work, [*ppo_files(10), *ppo_files(20)])
    for path in sorted((ppo_work / "checkpoints/global_step_10/actor").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert found(ppo_work) == [20]


def test_grpo_has_no_value_model_to_wait_for(tmp_path: Path) -> None:
    run = render_verl(handover("verl", ppo(estimator="grpo", samples_per_prompt=4), sharded(32)))
    write(tmp_path, [("ppo.yaml", run.files["ppo.yaml"].encode()), *ppo_files(10, critic=False)])
    assert found(tmp_path) == [10]


def test_ranks_that_share_a_sequence_share_a_loader(tmp_path: Path) -> None:
    run = render_verl(handover("verl", sft(), sharded(64, data=2, context=2)))
    write(tmp_path, [("sft.yaml", run.files["sft.yaml"].encode()), *sft_files(10, loaders=2)])
    assert found(tmp_path) == [10]


def test_a_directory_that_vanishes_is_left_out(ppo_work: Path) -> None:
    assert found(ppo_work) == []
    assert ADAPTER.final_step(ppo_work) is None


def test_a_resume_begins_beside_an_empty_directory(ppo_work: Path) -> None:
    write(ppo_work, [*ppo_files(10), *ppo_files(20), *ppo_files(30)])
    saved = ppo_work / "saved"
    (ppo_work / "checkpoints/global_step_20").rename(saved)
    (saved / "manifest.json").write_text("{}")
    ADAPTER.taken(EngineCheckpoint(step=30, path=ppo_work / "checkpoints/global_step_30"), ppo_work)
    assert found(ppo_work) == [10]
    assert ADAPTER.final_step(ppo_work) == 30
    place = ADAPTER.place(saved, 20, ppo_work)
    assert place == str(ppo_work / "resume/global_step_20")
    assert found(ppo_work) == []
    assert ADAPTER.final_step(ppo_work) == 20
    assert not (Path(place) / "manifest.json").exists()
    assert (Path(place) / "data.pt").read_bytes() == (saved / "data.pt").read_bytes()


def test_a_run_that_trained_nothing_ends_where_it_began(ppo_work: Path) -> None:
    """verl issue 7401: exit code 0 after a resume at an epoch's end, without a step."""
    write(ppo_work, ppo_files(20))
    ADAPTER.place(ppo_work / "checkpoints/global_step_20", 20, ppo_work.parent / "other")
    other = ppo_work.parent / "other"
    (other / "ppo.yaml").write_bytes((ppo_work / "ppo.yaml").read_bytes())
    assert ADAPTER.final_step(other) == 20


def test_only_the_newest_taken_one_is_kept(ppo_work: Path) -> None:
    write(ppo_work, [*ppo_files(10), *ppo_files(20)])
    for item in list(ADAPTER.checkpoints(ppo_work)):
        ADAPTER.taken(item, ppo_work)
    assert [path.name for path in (ppo_work / "taken").iterdir()] == ["global_step_20"]
    assert found(ppo_work) == []


def test_steps_are_read_from_the_console(ppo_work: Path) -> None:
    log = ppo_work / "engine.log"
    log.write_text("starting\nstep:4 - training/global_step:4 - actor/lr:1e-06\n")
    assert [step.step for step in ADAPTER.steps(ppo_work, log)] == [4]
    assert list(ADAPTER.steps(ppo_work, ppo_work / "none.log")) == []


def test_weights_are_merged_by_verls_own_command(ppo_work: Path) -> None:
    write(ppo_work, ppo_files(20))
    place = ppo_work / "checkpoints/global_step_20"
    assert merge_command("python", place, ppo_work / "merged") == [
        "python", "-m", "verl.model_merger", "merge", "--backend", "fsdp",
        "--local_dir", str(place / "actor"), "--target_dir", str(ppo_work / "merged"),
    ]  # fmt: skip
    assert merge_command("python", ppo_work, ppo_work)[7] == str(ppo_work)


def test_a_merge_that_fails_or_has_nothing_to_merge_is_told(ppo_work: Path) -> None:
    case = handover("verl", ppo(), sharded(32))
    with pytest.raises(StageError, match="no whole checkpoint"):
        ADAPTER.convert(ppo_work, case, ppo_work / "model")
    write(ppo_work, ppo_files(20))
    with pytest.raises(StageError, match="model_merger ended with"):
        VerlAdapter(python=sys.executable).convert(ppo_work, case, ppo_work / "model")
