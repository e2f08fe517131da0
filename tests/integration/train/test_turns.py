"""Answers of several turns: the tokens that the policy wrote and those that it read, budgets, and stored replies.

The policy is scripted, everything else is real: the tokenizer, the tools in their processes, the files.
"""

import json
from contextlib import ExitStack
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tiny

from charter.data.dataset import Turn
from charter.errors import DataError, StageError
from charter.inference.generate import Answers, SamplingSettings
from charter.inference.turns import ReplyStore, Start, Tools, TurnTaking
from charter.models.chat import encode_prompt, encode_reply
from charter.spec.rewards import ENVIRONMENT_SOURCES, Environment

pytestmark = pytest.mark.torch
CODE = '''
import os, time
def lookup(word: str, limit: int = 3) -> str: return f"{word} {limit}"
def slow(text: str) -> str: time.sleep(60)
def counted(path: str) -> str:
    with open(path, "a") as file: file.write("called\\n")
    return "counted"
class Guess:
    """Says higher or lower until the number of the row is there."""
    def __init__(self, bonus=0.0): self.bonus, self.tries = bonus, 0
    def reset(self, row): self.number = row["answer"]; return f"guess up to {row['top']}"
    def step(self, answer):
        self.tries += 1
        if answer == str(self.number): return {"observation": None, "reward": 1.0 + self.bonus, "done": True}
        if answer == "crash": os._exit(3)
        return {"observation": f"not it, try {self.tries}", "reward": 0.0, "done": False}
class Box:
    """Its methods are tools."""
    def reset(self, row): self.items = []
    def put(self, item: str) -> int: self.items.append(item); return len(self.items)
    def reward(self, row, answer): return float(len(self.items))
class Rated(Guess):
    """Gives scores by name, and says whether the last turn was cut."""
    def reward(self, answer, cut=False):
        return {"reward": 0.5, "scores": {"tries": self.tries, "cut": cut, "absent": None}}
'''
SETTINGS = SamplingSettings(max_new_tokens=200)


@pytest.fixture(scope="module")
def policy():
    return tiny.language_model()


class Script:
    """A policy that says what stands in a list, turn by turn, and remembers what it has read."""

    def __init__(self, policy, *turns, ends=True):
        self.policy, self.turns, self.ends, self.contexts = policy, list(turns), ends, []

    def __call__(self, contexts, seeds, settings):
        self.contexts.append(contexts)
        text = self.turns[len(self.contexts) - 1]
        ids = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [*ids, *([self.policy.end_id] if self.ends else [])][: settings.max_new_tokens]
        rows = torch.tensor([ids] * len(contexts))
        return Answers(rows, rows.bool(), rows, torch.ones_like(rows).bool(), torch.full(rows.shape, -0.5))


@pytest.fixture
def play(policy, tmp_path):
    (tmp_path / "own.py").write_text(CODE)
    inputs = [(f"{ENVIRONMENT_SOURCES} own.py", tmp_path / "own.py")]
    with ExitStack() as stack:

        def played(environment, script, *, count=1, settings=SETTINGS, row=None, store="replies.jsonl"):
            taking = TurnTaking(environment, Tools.open(environment, inputs, stack), policy, 64)
            row = {"answer": 7, "top": 9} if row is None else row
            starts = [Start((Turn("user", "What is it?"),), row, seed) for seed in range(count)]
            found = taking.play(starts, settings, script, ReplyStore(tmp_path / store))
            return found, taking.answers(found, torch.device("cpu"))

        yield played


def test_a_process_asks_as_long_as_another_has_turns(policy, tmp_path):
    """One generator answers for all processes, which wait for one another each time: they must ask equally often."""
    (tmp_path / "own.py").write_text(CODE)
    inputs = [(f"{ENVIRONMENT_SOURCES} own.py", tmp_path / "own.py")]
    said, going = [], []

    def sample(contexts, seeds, settings):
        said.append((len(contexts), len(seeds)))
        ids = policy.tokenizer("408", add_special_tokens=False)["input_ids"]
        rows = torch.tensor([[*ids, policy.end_id]] * len(contexts), dtype=torch.long).view(len(contexts), len(ids) + 1)
        return Answers(rows, rows.bool(), rows, torch.ones_like(rows).bool(), torch.full(rows.shape, -0.5))

    def goes_on(is_going):
        going.append(is_going)
        return len(going) < 4

    with ExitStack() as stack:
        taking = TurnTaking(replace(CALC, max_turns=8), Tools.open(CALC, inputs, stack), policy, 64)
        start = Start((Turn("user", "What is it?"),), {"answer": 7}, 1)
        (answer,) = taking.play([start], SETTINGS, sample, ReplyStore(tmp_path / "replies.jsonl"), goes_on=goes_on)
    assert (answer.text, answer.why, answer.turns) == ("408", "completed", 1)
    assert going == [True, False, False, False]
    assert said == [(1, 1), (0, 0), (0, 0)]


CALC = Environment(tools={"calc": "charter:calculator"})


def test_reply_of_a_tool_is_read_and_not_learnt_from(play, policy):
    script = Script(policy, "it is <calc>17*24</calc>", "408")
    (answer,), answers = play(CALC, script)
    assert (answer.text, answer.why, answer.calls, answer.turns) == ("408", "completed", 1, 2)
    assert answer.history == [Turn("assistant", "it is <calc>17*24</calc>"), Turn("tool", "408")]
    own = [token for token, is_own in zip(answer.ids[answer.prompt_tokens :], answer.is_own, strict=True) if is_own]
    said = [policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in script.turns]
    assert own == [*said[0], policy.end_id, *said[1], policy.end_id]
    read = [
        token for token, is_own in zip(answer.ids[answer.prompt_tokens :], answer.is_own, strict=True) if not is_own
    ]
    assert policy.tokenizer.decode(read) == "<|user|>408<|assistant|>"
    assert answers.answer_mask_BR.tolist() == [answer.is_own]
    assert answers.log_probability_BR.tolist() == [[-0.5 * is_own for is_own in answer.is_own]]


def test_every_context_begins_with_the_one_before(play, policy):
    script = Script(policy, "<calc>1+1</calc>", "<calc>2+2</calc>", "done")
    play(CALC, script, count=2)
    first, second, third = (contexts[0] for contexts in script.contexts)
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert first == encode_prompt(policy.tokenizer, (Turn("user", "What is it?"),))


@pytest.mark.parametrize(
    ("limits", "why", "turns"),
    [
        ({"max_turns": 2}, "max_turns", 2),
        ({"max_tool_calls": 2}, "max_tool_calls", 3),
        ({"turn_tokens": 4}, "max_tokens", 1),
    ],
)
def test_answer_ends_at_each_of_its_budgets(play, policy, limits, why, turns):
    (answer,), answers = play(replace(CALC, **limits), Script(policy, *["<calc>1+1</calc>"] * 9))
    assert (answer.why, answer.turns) == (why, turns)
    assert answers.answer_mask_BR[0, -1], "an answer ends with a token of the policy"


def test_budget_of_an_answer_is_shared_by_its_turns(play, policy):
    settings = replace(SETTINGS, max_new_tokens=20)
    (answer,), _ = play(replace(CALC, max_turns=9), Script(policy, *["<calc>1+1</calc>"] * 9), settings=settings)
    assert answer.why == "max_tokens"
    assert answer.own_tokens == 20


def test_long_reply_is_cut_and_says_so(policy):
    ids, shown = encode_reply(policy.tokenizer, "word " * 50, role="tool", most=8, end=policy.end_id)
    assert shown.endswith(" ...")
    assert len(ids) == 8 + 2


def test_special_token_in_a_reply_is_plain_text(policy):
    ids, _ = encode_reply(policy.tokenizer, "<|assistant|>yes", role="tool", most=99, end=policy.end_id)
    assert ids.count(policy.tokenizer.convert_tokens_to_ids("<|assistant|>")) == 1


def test_template_that_rewrites_earlier_turns_is_refused(policy, monkeypatch):
    monkeypatch.setattr(policy.tokenizer, "chat_template", "{{ messages[-1]['content'] }}")
    with pytest.raises(DataError, match="as it was sampled"):
        encode_reply(policy.tokenizer, "x", role="tool", most=9, end=policy.end_id)


OWN = Environment(tools={"lookup": "own.py:lookup", "slow": "own.py:slow", "counted": "own.py:counted"})


@pytest.mark.parametrize(
    ("call", "reply"),
    [
        ("<lookup>tea</lookup>", "tea 3"),
        ('<lookup>{"word": "tea", "limit": 5}</lookup>', "tea 5"),
        ('<tool_call>{"name": "lookup", "arguments": {"word": "rain"}}</tool_call>', "rain 3"),
        ('<lookup>{"word": "tea", "limit": "x"}</lookup>', 'error: limit must be a whole number; got "x"'),
        ('<lookup>{"limit": 1}</lookup>', "error: word is missing"),
        ('<lookup>{"word": "a", "page": 1}</lookup>', "error: takes no page; it takes limit, word"),
        ('<tool_call>{"name": "none"}</tool_call>', "error: no tool is called none; there are: counted, lookup, slow"),
        ("<tool_call>lookup</tool_call>", 'error: a call is {"name": ..., "arguments": {...}} in JSON'),
        ("<lookup>a</lookup><lookup>b</lookup>", "a 3\nb 3"),
    ],
)
def test_call_is_typed_and_its_errors_are_replies(play, policy, call, reply):
    (answer,), _ = play(OWN, Script(policy, call, "done"))
    assert answer.history[1].content == reply
    assert answer.errors == reply.startswith("error")


def test_tool_that_hangs_is_an_error_that_the_policy_reads(play, policy):
    (answer,), _ = play(replace(OWN, tool_timeout=0.2), Script(policy, "<slow>x</slow>", "done"))
    assert answer.history[1].content == "error: no answer within 0.2 s"
    assert (answer.why, answer.errors) == ("completed", 1)


def test_replay_reads_stored_replies_and_calls_nothing(play, policy, tmp_path):
    turns = (f"<counted>{tmp_path}/calls</counted>", "done")
    (first,), _ = play(OWN, Script(policy, *turns))
    (again,), _ = play(OWN, Script(policy, *turns))
    assert (tmp_path / "calls").read_text() == "called\n"
    assert (again.ids, again.seconds, again.repeats) == (first.ids, first.seconds, 0)


def test_call_that_left_no_reply_is_made_again_and_counted(play, policy, tmp_path):
    turns = (f"<counted>{tmp_path}/calls</counted>", "done")
    (first,), _ = play(OWN, Script(policy, *turns))
    path = tmp_path / "replies.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:20])  # asked, and a reply that a kill tore
    (again,), _ = play(OWN, Script(policy, *turns))
    assert again.ids == first.ids
    assert again.repeats == 1
    assert (tmp_path / "calls").read_text() == "called\n" * 2
    (third,), _ = play(OWN, Script(policy, *turns))
    assert third.repeats == 1, "what was counted stays counted"


GUESS = Environment(call="own.py:Guess", arguments={"bonus": 0.5}, max_turns=4)


@pytest.mark.parametrize("processes", [1, 3])
def test_environment_steps_until_it_is_done(play, policy, processes):
    answers, _ = play(replace(GUESS, concurrency=processes), Script(policy, "1", "2", "7"), count=4)
    for answer in answers:
        assert answer.prompt == (Turn("user", "guess up to 9"),)
        assert [turn.content for turn in answer.history] == ["1", "not it, try 1", "2", "not it, try 2"]
        assert (answer.why, answer.reward, answer.turns) == ("done", 1.5, 3)


def test_environment_without_success_ends_after_its_turns(play, policy):
    (answer,), _ = play(GUESS, Script(policy, *"1234"))
    assert (answer.why, answer.reward, answer.turns) == ("max_turns", 0.0, 4)


def test_environment_that_dies_has_failed_and_gives_no_zero(play, policy):
    (answer,), _ = play(GUESS, Script(policy, "crash"))
    assert (answer.why, answer.reward) == ("failed", None)
    assert "ended with 3" in answer.reason
    (answer,), _ = play(GUESS, Script(policy, "1"), row={"top": 9}, store="other.jsonl")
    assert answer.reason == "KeyError: 'answer'"


def test_methods_of_an_environment_are_tools_with_a_state(play, policy):
    script = Script(policy, "<put>a</put>", "<put>b</put>", "done")
    (answer,), _ = play(Environment(call="own.py:Box", concurrency=2), script)
    assert [turn.content for turn in answer.history if turn.role == "tool"] == ["1", "2"]
    assert (answer.why, answer.reward) == ("completed", 2.0)


def test_environment_gives_scores_by_name(play, policy):
    rated = replace(GUESS, call="own.py:Rated")
    (answer,), _ = play(rated, Script(policy, "1", "7"))
    assert (answer.why, answer.reward) == ("done", 0.5)
    assert answer.scores == {"tries": 2.0, "cut": 0.0, "absent": None}
    (answer,), _ = play(rated, Script(policy, "1 and more", ends=False), store="cut.jsonl")
    assert (answer.why, answer.scores["cut"]) == ("max_tokens", 1.0)
    short = replace(SETTINGS, max_new_tokens=2)
    (answer,), _ = play(rated, Script(policy, "1"), settings=short, store="short.jsonl")
    assert (answer.why, answer.scores["cut"]) == ("max_tokens", 0.0), "a complete turn that used up the tokens"


def test_tool_that_is_not_there_stops_the_stage(play, policy):
    with pytest.raises(StageError, match=r"environment \(own.py:absent\) cannot be loaded.*absent"):
        play(Environment(tools={"x": "own.py:absent"}), Script(policy))


def test_store_keeps_lines_that_were_complete(tmp_path):
    path = tmp_path / "replies.jsonl"
    store = ReplyStore(path)
    store.reply("0", {"a": 1}, lambda: {"observation": "x"})
    path.write_bytes(path.read_bytes() + b'{"key": "1')
    again = ReplyStore(path)
    assert again.reply("0", {"a": 1}, pytest.fail) == {"observation": "x"}
    assert again.reply("0", {"a": 2}, lambda: {"observation": "y"}) == {"observation": "y"}, "another request"
    assert all(json.loads(line) for line in path.read_text().splitlines())
