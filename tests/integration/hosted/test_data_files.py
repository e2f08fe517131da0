"""The rows that an engine reads: those of the native engine, in its order; what cannot be expressed is refused."""

import json
from dataclasses import replace

import pytest
import torch
from pyarrow import parquet
from test_faults import COMMON, SFT, stage_of

from charter.errors import DataError, UsageError
from charter.hosted.data_files import write_data
from charter.models.chat import load_tokenizer
from charter.models.engine_layout import StageLayout
from charter.models.ranks import Ranks
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import Reward
from charter.spec.stage import DpoStage, PreferenceModelStage, PretrainStage
from charter.train.meter import Meter
from charter.train.schedule import batch_rows
from charter.train.setup import Setup

pytestmark = pytest.mark.torch
REWARD = PreferenceModelStage(init="b", data=("d",), **COMMON)
DPO = DpoStage(init="b", data=("d",), **COMMON)


def written(path, inputs, spec, *, data=None, tokenizer=None):
    """The rows of the file, what is said of it, and the stage's directory."""
    stage = stage_of(path, inputs, spec)
    if data is not None:
        (path / "data").mkdir()
        (path / "data" / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
        item = replace(stage.job.inputs["data"][0], path=str(path / "data"))
        reward = replace(stage.job.inputs["init"][0], role="reward")
        read = {**stage.job.inputs, "data": (item,), "prompts": (item,), "reward": (reward,)}
        stage.job = replace(stage.job, inputs=read)
    meter = Meter(path, device=torch.device("cpu"))
    setup = Setup(stage=stage, ranks=Ranks(), layout=StageLayout(), meter=meter)
    tokenizer = tokenizer or load_tokenizer(inputs / "base" / "model")
    found = write_data(stage, setup, tokenizer, path / "files")
    (role,) = found.paths
    if found.paths[role].endswith(".parquet"):
        return parquet.read_table(found.paths[role]).to_pylist(), found, setup
    with open(found.paths[role], encoding="utf-8") as file:
        return [json.loads(line) for line in file], found, setup


def texts_of(rows, tokenizer, field):
    return [tokenizer.decode(row[field]) for row in rows]


def pair(number, **changes):
    return {
        "id": str(number),
        "prompt": [{"role": "user", "content": f"What is {number}?"}],
        "chosen": [{"role": "assistant", "content": f"It is {number}."}],
        "rejected": [{"role": "assistant", "content": "No."}],
        **changes,
    }


def test_every_batch_is_the_one_that_the_native_engine_takes(tmp_path, inputs):
    rows, found, setup = written(tmp_path / "s", inputs, SFT)
    assert found.target_steps == 6
    assert len(rows) == found.rows["data"] == 6 * 4
    once, _, _ = written(tmp_path / "t", inputs, replace(SFT, steps=None, epochs=1.0, global_batch=8))
    in_order = [None] * 8
    for place, index in enumerate(batch_rows(0, rows=8, batch=8, seed=setup.seed("order"))):
        in_order[index] = once[place]
    for step in range(6):
        wanted = [in_order[row] for row in batch_rows(step, rows=8, batch=4, seed=setup.seed("order"))]
        assert rows[step * 4 : step * 4 + 4] == wanted
    assert found.counters[1] == {"tokens": sum(len(row["input_ids"]) for row in rows[:4])}
    assert sorted(found.counters) == [1, 2, 3, 4, 5, 6]


def test_epochs_are_counted_in_steps(tmp_path, inputs):
    rows, found, _ = written(tmp_path / "s", inputs, replace(SFT, steps=None, epochs=1.5, global_batch=5))
    assert found.target_steps == 3
    assert len(rows) == 15


def test_only_answers_count_and_the_first_token_never_does(tmp_path, inputs):
    tokenizer = load_tokenizer(inputs / "base" / "model")
    rows, _, _ = written(tmp_path / "s", inputs, SFT)
    for row in rows:
        assert row["assistant_masks"][0] == 0
        counted = [token for token, mark in zip(row["input_ids"], row["assistant_masks"], strict=True) if mark]
        assert tokenizer.decode(counted).startswith("Read a book about ")
        assert counted[-1] == tokenizer.eos_token_id


def test_a_long_conversation_is_cut_as_the_native_engine_cuts_it(tmp_path, inputs):
    whole, _, _ = written(tmp_path / "s", inputs, SFT)
    cut, _, _ = written(tmp_path / "t", inputs, replace(SFT, seq_len=10))
    for long, short in zip(whole, cut, strict=True):
        assert short["input_ids"] == long["input_ids"][-10:]
        assert short["assistant_masks"] == [0, *long["assistant_masks"][-9:]]


@pytest.mark.parametrize("engine", ["trl", "openrlhf"])
def test_packed_rows_are_written_once(tmp_path, inputs, engine):
    """As tokens or as messages: the engine makes its batches of them, so no batch of Charter's is in the file."""
    rows, found, _ = written(tmp_path / "s", inputs, replace(SFT, packing=True, engine=engine))
    assert len(rows) == 8
    assert found.counters == {}


def test_plain_text_counts_everywhere_but_at_its_beginning(tmp_path, inputs):
    spec = PretrainStage(init="b", data=("d",), **{**COMMON, "seq_len": 16})
    data = [{"text": f"A text about the number {number}, which is not long."} for number in range(8)]
    rows, found, _ = written(tmp_path / "s", inputs, spec, data=data)
    assert all(row["assistant_masks"] == [0] + [1] * 15 and len(row["input_ids"]) == 16 for row in rows)
    assert found.counters[1] == {"tokens": 64}
    tokens, _, _ = written(tmp_path / "t", inputs, replace(spec, engine="maxtext"), data=data)
    assert [list(row["input_ids"]) for row in tokens] == [row["input_ids"] for row in rows]


def test_pairs_are_read_as_a_preference_model_reads_them(tmp_path, inputs):
    tokenizer = load_tokenizer(inputs / "base" / "model")
    rows, found, _ = written(tmp_path / "s", inputs, REWARD, data=[pair(1), pair(2, chosen_probability=0.0)])
    texts = {(tokenizer.decode(row["chosen_ids"]), tokenizer.decode(row["rejected_ids"])) for row in rows}
    asked = "<|user|>What is {}?<|assistant|>{}<|endoftext|>"
    assert texts == {
        (asked.format(1, "It is 1."), asked.format(1, "No.")),
        (asked.format(2, "No."), asked.format(2, "It is 2.")),
    }
    assert "margin" not in rows[0]
    tokens = sum(len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in rows[:4])
    assert found.counters[1] == {"tokens": tokens, "pairs": 4}


@pytest.mark.parametrize("spec", [REWARD, DPO])
def test_soft_labels_are_refused_with_their_number(tmp_path, inputs, spec):
    data = [pair(1), pair(2, chosen_probability=0.7), pair(3, chosen_probability=0.5)]
    with pytest.raises(DataError, match=r"2 of 3 pairs have soft labels .*(?s:.*)engine: native"):
        written(tmp_path / "s", inputs, spec, data=data)


def test_margins_are_a_column_and_turn_with_their_label(tmp_path, inputs):
    data = [pair(1, margin=2.0), pair(2, margin=1.0, chosen_probability=0.0)]
    rows, _, _ = written(tmp_path / "s", inputs, replace(REWARD, use_margin=True), data=data)
    assert {row["margin"] for row in rows} == {2.0, -1.0}


def test_shuffled_labels_are_shuffled_in_the_file(tmp_path, inputs):
    data = [pair(number, chosen_probability=float(number % 2)) for number in range(8)]
    plain, _, _ = written(tmp_path / "s", inputs, REWARD, data=data)
    other, _, _ = written(tmp_path / "t", inputs, replace(REWARD, shuffle_labels=True), data=data)
    assert plain != other
    both = [
        {(*map(tuple, sorted([row["chosen_ids"], row["rejected_ids"]])),) for row in rows} for rows in (plain, other)
    ]
    assert both[0] == both[1]


def test_answers_that_end_in_padding_are_refused(tmp_path, inputs):
    tokenizer = load_tokenizer(inputs / "base" / "model")
    tokenizer.pad_token = tokenizer.eos_token
    with pytest.raises(DataError, match=r"48 of 48 answers end in '<\|endoftext\|>', which .* also pads with"):
        written(tmp_path / "s", inputs, REWARD, data=[pair(n) for n in range(24)], tokenizer=tokenizer)


def test_pairs_of_dpo_are_messages_and_long_ones_are_told(tmp_path, inputs):
    rows, found, _ = written(tmp_path / "s", inputs, DPO, data=[pair(1), pair(2, chosen_probability=0.0)])
    by_prompt = {row["prompt"][0]["content"]: row for row in rows}
    assert by_prompt["What is 1?"]["chosen"] == [{"role": "assistant", "content": "It is 1."}]
    assert by_prompt["What is 2?"]["rejected"] == [{"role": "assistant", "content": "It is 2."}]
    assert found.notes == ()
    assert found.counters[1]["pairs"] == 4
    data = [pair(1), pair(2, chosen=[{"role": "assistant", "content": "because " * 80}])]
    _, found, _ = written(tmp_path / "t", inputs, DPO, data=data)
    assert len(found.notes) == 1
    assert found.notes[0].startswith("1 of 2 pairs are longer than seq_len 64")


def test_prompts_without_room_for_an_answer_are_left_out(tmp_path, inputs):
    """TRL would drop them, and whatever follows would be in another batch."""
    crowded = pair(2, prompt=[{"role": "user", "content": "why " * 80}])
    rows, found, _ = written(tmp_path / "s", inputs, DPO, data=[pair(1), crowded, pair(3)])
    assert {row["prompt"][0]["content"] for row in rows} == {"What is 1?", "What is 3?"}
    assert found.notes == ("1 of 3 pairs, whose prompt alone fills seq_len 64, are left out: TRL drops them",)
    with pytest.raises(DataError, match="none of 1 pairs has a prompt of less than seq_len 64 tokens"):
        written(tmp_path / "t", inputs, DPO, data=[crowded])
    kept, found, _ = written(tmp_path / "u", inputs, replace(DPO, engine="openrlhf"), data=[pair(1), crowded])
    assert len({str(row["prompt"]) for row in kept}) == 2
    assert found.notes[0].startswith("1 of 2 pairs are longer than seq_len 64")


KTO = replace(DPO, loss="kto")


def test_answers_of_kto_never_meet_their_own_prompt(tmp_path, inputs):
    """In micro-batches of any size, of which TRL reads each prompt with the answer before, the first with the last."""
    data = [pair(number % 5, id=str(number)) for number in range(8)]
    pairs, plain, _ = written(tmp_path / "s", inputs, DPO, data=data)
    rows, found, _ = written(tmp_path / "t", inputs, KTO, data=data)
    assert (found.target_steps, found.counters) == (plain.target_steps, plain.counters)
    assert found.rows["data"] == len(rows) == 2 * len(pairs)
    for start in range(0, len(pairs), 4):
        batch = rows[2 * start : 2 * start + 8]
        said = {(str(row["prompt"]), str(row["completion"]), row["label"]) for row in batch}
        of_pairs = [
            {(str(row["prompt"]), str(row[name]), name == "chosen") for name in ("chosen", "rejected")}
            for row in pairs[start : start + 4]
        ]
        assert said == set().union(*of_pairs)
        for size in (2, 4, 8):
            for first in range(0, 8, size):
                part = [row["prompt"] for row in batch[first : first + size]]
                assert all(one != before for one, before in zip(part, [part[-1], *part[:-1]], strict=True))


def test_a_batch_of_one_prompt_is_no_batch_of_kto(tmp_path, inputs):
    with pytest.raises(DataError, match=r"the 4 pairs of batch 1 have 1 prompts(?s:.*)engine: native"):
        written(tmp_path / "s", inputs, KTO, data=[pair(1), pair(1, id="2")])


def test_prompts_are_those_of_every_rollout(tmp_path, inputs):
    spec = PpoStage(
        policy="b", reward="r", prompts=("d",), episodes=24, rollout_batch=8, samples_per_prompt=4, estimator="rloo",
        max_prompt_tokens=40, engine="trl",
    )  # fmt: skip
    data = [{"prompt": [{"role": "user", "content": f"Say {number}"}]} for number in range(5)]
    data.append({"prompt": [{"role": "user", "content": "why " * 200}]})
    rows, found, _ = written(tmp_path / "s", inputs, spec, data=data)
    assert found.target_steps == 3
    assert len(rows) == 3 * 2
    assert len({row["prompt"][0]["content"] for row in rows[:5]}) == 5
    assert found.notes[0].startswith("1 of 6 prompts are longer than max_prompt_tokens 40 and are left out")


def test_engines_that_tokenise_themselves_get_messages_in_the_same_order(tmp_path, inputs):
    tokens, _, _ = written(tmp_path / "s", inputs, SFT)
    tokenizer = load_tokenizer(inputs / "base" / "model")
    for number, engine in enumerate(("openrlhf", "verl", "maxtext")):
        rows, found, _ = written(tmp_path / str(number), inputs, replace(SFT, engine=engine))
        assert found.paths["data"].endswith("data.jsonl" if engine == "openrlhf" else "data.parquet")
        said = [tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows]
        assert said == [tokenizer.decode(row["input_ids"]) for row in tokens]
    rows, found, _ = written(tmp_path / "p", inputs, replace(REWARD, engine="openrlhf"), data=[pair(1), pair(2)])
    assert rows[0]["rejected"] == [{"role": "assistant", "content": "No."}]
    assert found.counters[1]["pairs"] == 4


def test_prompts_of_verl_have_its_columns(tmp_path, inputs):
    spec = PpoStage(policy="b", reward="r", prompts=("d",), episodes=8, rollout_batch=4, engine="verl")
    data = [{"prompt": [{"role": "user", "content": f"Say {number}"}]} for number in range(5)]
    rows, _, _ = written(tmp_path / "s", inputs, spec, data=data)
    assert [row["extra_info"]["index"] for row in rows] == [*range(8)]
    assert {row["reward_model"]["style"] for row in rows} == {"model"}


@pytest.mark.parametrize("engine", ["trl", "verl"])
def test_prompts_carry_what_a_list_of_rewards_reads(tmp_path, inputs, engine):
    right = Reward(name="right", kind="function", call="charter:number")
    spec = PpoStage(policy="b", rewards=(right,), prompts=("d",), episodes=8, rollout_batch=4, engine=engine)
    data = [{"prompt": [{"role": "user", "content": f"Say {number}"}], "answer": number} for number in range(5)]
    rows, _, _ = written(tmp_path / "s", inputs, spec, data=data)
    texts = [row["charter"] if engine == "trl" else row["reward_model"]["ground_truth"] for row in rows]
    for row, text in zip(rows, texts, strict=True):
        carried = json.loads(text)
        assert carried["turns"] == row["prompt"]
        assert carried["row"]["answer"] == int(row["prompt"][0]["content"].removeprefix("Say "))


def test_data_that_needs_tools_of_the_engine_is_for_export(tmp_path, inputs):
    with pytest.raises(UsageError, match="the data of megatron is made by tools of its own"):
        written(tmp_path / "s", inputs, replace(SFT, engine="megatron"))
