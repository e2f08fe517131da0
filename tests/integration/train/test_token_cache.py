"""The token cache: the same tokens as without it, made once, never used when a bit of it or of its sources differs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forks
import pytest
from texts import read_texts

torch = pytest.importorskip("torch")

import tiny

from charter.artifacts.job import JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.data.dataset import (
    read_conversations,
)
from charter.errors import DataError
from charter.models.chat import Encoded, encode_conversations, train_tokenizer
from charter.models.ranks import Ranks
from charter.spec.project import DataSpec
from charter.spec.stage import SftStage
from charter.train import token_data
from charter.train.token_data import (
    cached_tokens,
    conversation_rows,
    text_stream,
    tokenizer_hash,
)

pytestmark = pytest.mark.torch
SPEC = SftStage(init="base", data=("chat",), steps=1)
ALONE = Ranks()


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(tiny.TEXTS, vocab_size=400)


def row(index, words=3):
    turns = [("user", "How do I learn? " * (index % words + 1)), ("assistant", f"Read book {index}.")]
    more = [("user", "And then?"), ("assistant", "日本 " * index + "again.")] if index % 4 == 0 else []
    return {"messages": [{"role": role, "content": content} for role, content in (*turns, *more)]}


def stage_with(folder: Path, rows, **changes) -> StageDir:
    """A stage that reads a file of rows; `changes` of its data set."""
    folder.mkdir(exist_ok=True)
    path = folder / "chat.jsonl"
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in rows))
    data = DataSpec(path="chat.jsonl", **changes)
    found = JobInput(name="chat", role="data", source="data", path=str(path), fingerprint="c" * 64, data=data)
    stage = tiny.stage_dir(folder / "stage", SPEC)
    write_job(stage.path, replace(stage.job, inputs={"data": (found,)}))
    return StageDir(stage.path)


def caches(stage):
    return sorted(path.name for path in stage.path.glob("tokens-*"))


def conversations_of(stage, tokenizer, **changes):
    return conversation_rows(stage, tokenizer, **({"seq_len": 48, "ranks": ALONE} | changes))


def test_conversations_are_tokenised_as_one_by_one(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(token_data, "CHUNK_ROWS", 4)
    stage = stage_with(tmp_path, [row(i) for i in range(11)])
    found = conversations_of(stage, tokenizer)
    expected = [
        encode_conversations(tokenizer, [item.turns], max_tokens=48)[0]
        for item in read_conversations(tmp_path / "chat.jsonl")
    ]
    assert [found[i] for i in range(len(found))] == expected
    assert found.lengths() == [len(item.ids) for item in expected]
    assert max(found.lengths()) == 48


def test_texts_end_to_end_are_the_rows_of_one_long_list(tmp_path, tokenizer):
    stage = stage_with(tmp_path, [{"text": "tea and rain " * (i + 1)} for i in range(9)] + [row(1)])
    whole: list[int] = []
    for item in read_texts(tmp_path / "chat.jsonl"):
        messages = [{"role": turn.role, "content": turn.content} for turn in item.turns]
        is_plain = messages[0]["role"] == "text"
        text = messages[0]["content"] if is_plain else tokenizer.apply_chat_template(messages, tokenize=False)
        whole += tokenizer(text, add_special_tokens=is_plain)["input_ids"]
        whole += [tokenizer.eos_token_id] * (whole[-1] != tokenizer.eos_token_id)
    stream = text_stream(stage, tokenizer, seq_len=16, ranks=ALONE)
    assert len(stream) == len(whole) // 16 > 3
    order = [2, 0, len(stream) - 1]
    assert stream[order].tolist() == [whole[i * 16 : (i + 1) * 16] for i in order]
    assert stream[order].dtype == torch.long
    assert stream[[]].shape == (0, 16)
    with pytest.raises(IndexError):
        stream[[len(stream)]]


def test_plain_text_has_no_chat_template(tmp_path, tokenizer):
    stage = stage_with(tmp_path, [{"text": "tea and rain"}, row(1)])
    stream = text_stream(stage, tokenizer, seq_len=1, ranks=ALONE)
    whole = tokenizer.decode(stream[range(len(stream))].flatten())
    assert whole.startswith("tea and rain<|endoftext|><|user|>")


def test_texts_of_another_row_length_are_not_tokenised_again(tmp_path, tokenizer):
    stage = stage_with(tmp_path, [{"text": "tea and rain " * 9}])
    rows = [len(text_stream(stage, tokenizer, seq_len=length, ranks=ALONE)) for length in (4, 8)]
    assert rows[0] >= 2 * rows[1] > 0
    assert len(caches(stage)) == 1


def test_a_second_start_reads_no_data(tmp_path, tokenizer):
    stage = stage_with(tmp_path, [row(i) for i in range(5)])
    first = conversations_of(stage, tokenizer)
    (tmp_path / "chat.jsonl").unlink()
    second = conversations_of(StageDir(stage.path), tokenizer)
    assert [second[i] for i in range(len(second))] == [first[i] for i in range(len(first))]


@pytest.mark.parametrize("change", ["data", "records", "seq_len", "tokenizer", "template", "way"])
def test_whatever_decides_the_tokens_decides_the_cache(change, tmp_path, tokenizer):
    stage = stage_with(tmp_path, [row(i) for i in range(5)])
    if change == "records":
        (tmp_path / "records.jsonl").write_text((tmp_path / "chat.jsonl").read_text())
        stage = tiny.stage_dir(tmp_path / "stage", SPEC, {"data": tmp_path})
    conversations_of(stage, tokenizer)
    other, length = tokenizer, 48
    if change == "data":
        item = replace(stage.job.only("data"), fingerprint="d" * 64)
        write_job(stage.path, replace(stage.job, inputs={"data": (item,)}))
        stage = StageDir(stage.path)
    elif change == "records":
        (tmp_path / "records.jsonl").write_text(json.dumps(row(3)) + "\n")
    elif change == "seq_len":
        length = 24
    elif change == "tokenizer":
        other = train_tokenizer(tiny.TEXTS, vocab_size=300)
    elif change == "template":
        other = train_tokenizer(tiny.TEXTS, vocab_size=400)
        assert tokenizer_hash(other) == tokenizer_hash(tokenizer)
        other.chat_template = other.chat_template.replace("<|user|>", "User: ")
    else:
        text_stream(stage, tokenizer, seq_len=8, ranks=ALONE)
    conversations_of(stage, other, seq_len=length)
    assert len(caches(stage)) == 2


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin", "answers.bin", "manifest.json"])
@pytest.mark.parametrize("place", [0.0, 0.5, 0.99])
def test_a_flipped_bit_is_found_and_the_cache_made_again(name, place, tmp_path, tokenizer, capsys):
    stage = stage_with(tmp_path, [row(i) for i in range(5)])
    first = conversations_of(stage, tokenizer)
    expected = [first[i] for i in range(len(first))]
    (cache,) = caches(stage)
    flip(stage.path / cache / name, place)
    second = conversations_of(stage, tokenizer)
    assert [second[i] for i in range(len(second))] == expected
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert f"token cache {cache} is damaged" in told[0]
    assert caches(stage) == [cache, f"{cache}.damaged-1"]


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin", "answers.bin", "manifest.json"])
@pytest.mark.parametrize("cut", ["shorter", "gone"])
def test_a_file_cut_short_or_gone_is_found(name, cut, tmp_path, tokenizer, capsys):
    stage = stage_with(tmp_path, [row(i) for i in range(5)])
    conversations_of(stage, tokenizer)
    file = stage.path / caches(stage)[0] / name
    file.unlink() if cut == "gone" else file.write_bytes(file.read_bytes()[:-1])
    assert len(conversations_of(stage, tokenizer)) == 5
    assert "is damaged" in capsys.readouterr().err


def test_a_cache_under_the_name_of_another_is_not_used(tmp_path, tokenizer, capsys):
    stage = stage_with(tmp_path, [row(i) for i in range(5)])
    conversations_of(stage, tokenizer)
    (first,) = caches(stage)
    conversations_of(stage, tokenizer, seq_len=24)
    (second,) = set(caches(stage)) - {first}
    (stage.path / first).rename(tmp_path / "away")
    (stage.path / second).rename(stage.path / first)
    assert max(conversations_of(stage, tokenizer).lengths()) > 24
    assert "its manifest is of another cache" in capsys.readouterr().err


def test_a_crash_while_it_is_made_leaves_nothing_that_is_taken_for_it(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(token_data, "CHUNK_ROWS", 2)
    stage = stage_with(tmp_path, [*(row(i) for i in range(5)), "no json"])
    with pytest.raises(DataError, match=r"chat\.jsonl:6: not valid JSON"):
        conversations_of(stage, tokenizer)
    assert caches(stage) == []


def test_rows_left_out_are_told_again_when_the_cache_is_read(tmp_path, tokenizer, capsys):
    stage = stage_with(tmp_path, [row(0), "no json", row(1)], on_bad_row="skip")
    first, second = conversations_of(stage, tokenizer), conversations_of(stage, tokenizer)
    assert (first.skipped.count, len(first)) == (1, 2)
    assert second.skipped == first.skipped
    told = capsys.readouterr().err.splitlines()
    assert told == 2 * first.skipped.lines()
    assert "chat.jsonl:2: not valid JSON" in told[1]


def test_a_large_vocabulary_takes_four_bytes_and_a_small_one_two(tmp_path, tokenizer):
    class Large:
        def __len__(self):
            return 1 << 17

        def save_pretrained(self, folder):
            (Path(folder) / "tokenizer.json").write_text("large")

    stage = stage_with(tmp_path, [row(0)])

    def make(skipped):
        yield [Encoded((1, 100_000), (False, True))]

    found = cached_tokens(stage, ALONE, role="data", tokenizer=Large(), how={}, make=make)
    assert found[0].ids == (1, 100_000)
    assert found.ids.dtype.itemsize == 4
    assert conversations_of(stage, tokenizer).ids.dtype.itemsize == 2


def test_too_few_tokens_for_a_row_say_so(tmp_path, tokenizer):
    stage = stage_with(tmp_path, [{"text": "tea"}])
    with pytest.raises(DataError, match=r"the data has \d tokens, fewer than one row of seq_len 64"):
        text_stream(stage, tokenizer, seq_len=64, ranks=ALONE)


RANK = """
import sys, hashlib, torch
sys.path.insert(0, {tests!r})
import tiny
from pathlib import Path
from charter.artifacts.stage_dir import StageDir
from charter.models.ranks import join, leave
from charter.models.chat import train_tokenizer
from charter.train import token_data
token_data.CHUNK_ROWS = 1
stage = StageDir(Path({stage!r}))
ranks = join(stage.path, torch.device("cpu"))
rows = token_data.conversation_rows(stage, train_tokenizer(tiny.TEXTS, vocab_size=400), seq_len=48, ranks=ranks)
print(hashlib.sha256(repr([rows[i] for i in range(len(rows))]).encode()).hexdigest())
ranks.wait()
leave()
"""


def test_processes_that_start_together_make_it_once(tmp_path, tokenizer):
    stage = stage_with(tmp_path, [row(i) for i in range(6)])
    script = RANK.format(tests=str(Path(__file__).parent), stage=str(stage.path))
    processes = [
        forks.Process(
            [sys.executable, "-c", script],
            preload=forks.STAGES,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "CHARTER_GROUP": "g"},
        )
        for rank in range(3)
    ]
    found = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], found
    assert len({out for out, _ in found}) == 1
    assert len(caches(stage)) == 1
    assert [path.name for path in stage.path.iterdir() if path.name.startswith(".tmp-")] == []
