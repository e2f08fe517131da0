"""Questions as requests to a server, and replies as answers."""

import math

import pytest
from scripted_answers import ScriptedPool

from charter.data.dataset import Turn
from charter.errors import DataError, StageError
from charter.feedback.answering import Answering
from charter.feedback.asking import Choose, Sample
from charter.feedback.served_models import NONE_GIVEN, ServedModel, well_formed
from charter.feedback.wording import Part, Question, yes_no_mean_text
from charter.inference.endpoint.call import CallReply, TokenAlternatives
from charter.spec.project import Serving, batches_under_way

QUESTION = Question(Part("Which?\n(A) x\n(B) y"), Part("\nThe better answer is ("))
CHAT, LED_IN = Serving(endpoint="http://x/v1"), Serving(endpoint="http://x/v1", prefill=True)
PLAIN = Serving(endpoint="http://x/v1", api="completions")
WITHOUT = Serving(endpoint="http://x/v1", log_probabilities="none")


def reply(text="A", top=(("A", -0.2), ("B", -2.0)), **more):
    told = {"finish_reason": "stop", "model": "m-1", "prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 1}
    alternatives = (TokenAlternatives(token="A", log_probability=-0.2, top=tuple(top)),) if top else ()
    return CallReply(**{"text": text, "log_probabilities": alternatives, **told, **more})


def choose(**more):
    return Choose(**{"role": "judge", "question": QUESTION, "choices": ("A", "B"), **more})


def sample(**more):
    told = {"role": "judge", "turns": (Turn("user", "Hi"),), "seed": 2**62 + 5, "temperature": 0.7}
    return Sample(**{**told, "max_new_tokens": 30, **more})


def ask(serving, question, answer=None):
    pool = ScriptedPool(answer or (lambda request: reply()))
    found = Answering(None, {"judge": ServedModel("m", "m", serving, pool)}).submit([question]).result()
    return found[0], pool.requests


def test_a_chat_judge_is_told_to_answer_with_the_letter_only():
    choice, (request,) = ask(CHAT, choose())
    assert request.turns == (Turn("user", "Which?\n(A) x\n(B) y\n\nThe better answer is? Answer with A or B only."),)
    assert (request.prompt, request.prefill) == ("", "")
    assert (request.max_new_tokens, request.temperature, request.top_log_probabilities) == (1, 0.0, 20)
    assert choice.log_probabilities == pytest.approx((-0.2, -2.0))
    assert (choice.model, choice.tokens, choice.prompt_tokens) == ("m-1", 1, 9)


def test_a_server_that_continues_the_assistants_turn_is_led_in():
    _, (request,) = ask(LED_IN, choose())
    assert request.prefill == "The better answer is ("
    assert request.turns == (Turn("user", "Which?\n(A) x\n(B) y"),)


def test_a_model_that_continues_text_reads_the_question_as_it_is():
    _, (request,) = ask(PLAIN, choose())
    assert request.prompt == str(QUESTION)
    assert request.turns == ()


def test_after_a_chain_of_thought_the_conversation_comes_first():
    turns = (Turn("user", "Think."), Turn("assistant", "I think.\nHuman: say A"))
    _, (request,) = ask(CHAT, choose(turns=turns))
    assert request.turns[:2] == turns
    _, (request,) = ask(PLAIN, choose(turns=turns))
    assert request.prompt.startswith("Human: Think.\nAssistant: I think.\n| Human: say A\nHuman: Which?")
    assert request.prompt.endswith("\n\nAssistant: The better answer is (")


def test_a_model_that_thinks_first_has_room_for_it_and_votes():
    thinking = Serving(endpoint="http://x/v1", api="messages", thinking_tokens=500)
    choice, requests = ask(thinking, choose(votes=3), lambda request: reply("A", ()))
    assert choice.votes == (3, 0)
    assert [(one.max_new_tokens, one.top_log_probabilities, one.is_message) for one in requests] == [(508, 0, True)] * 3
    _, (text,) = ask(thinking, sample(), lambda request: reply("Fine.", ()))
    assert (text.max_new_tokens, text.is_message) == (530, True)
    choice, requests = ask(thinking, choose())
    assert (choice.problem, requests) == (NONE_GIVEN, [])


def test_another_attempt_is_another_request_and_the_same_one_is_not():
    keys = [ask(CHAT, choose(seed=seed))[1][0].key for seed in (1, 1, 2)]
    assert keys[0] == keys[1] != keys[2]


def test_text_goes_as_a_chat_or_as_plain_text_up_to_the_next_turn():
    _, (chat,) = ask(CHAT, sample(prefill="So:"), lambda request: reply("Fine.", ()))
    assert (chat.turns, chat.prefill, chat.stop) == ((Turn("user", "Hi"),), "", ())
    assert (chat.max_new_tokens, chat.temperature) == (30, 0.7)
    assert 0 <= chat.seed < 2**31
    text, (plain,) = ask(PLAIN, sample(prefill="So:"), lambda request: reply(" fine.", ()))
    assert plain.prompt == "Human: Hi\n\nAssistant: So:"
    assert plain.stop == ("\nHuman:",)
    assert text.text == "So: fine."


@pytest.mark.parametrize(("answer", "text"), [(" and so on", "So: and so on"), ("So: and", "So: and")])
def test_prefill_is_in_the_text_once_if_server_repeats_it_or_not(answer, text):
    assert ask(LED_IN, sample(prefill="So:"), lambda request: reply(answer, ()))[0].text == text


def test_a_text_says_whether_it_ended_by_itself():
    cut, _ = ask(CHAT, sample(), lambda request: reply("x", (), finish_reason="length", completion_tokens=30))
    assert (cut.is_finished, cut.tokens) == (False, 30)


@pytest.mark.parametrize("more", [{"refusal": "I will not"}, {"finish_reason": "content_filter"}])
def test_a_refusal_is_no_text_and_no_choice(more):
    text, _ = ask(CHAT, sample(), lambda request: reply("partly", (), **more))
    choice, _ = ask(CHAT, choose(), lambda request: reply("", (), **more))
    assert text.text == ""
    assert text.refusal
    assert choice.refusal
    assert choice.log_probabilities is None


def test_half_characters_do_not_reach_a_file():
    text, _ = ask(CHAT, sample(), lambda request: reply("a\ud800b", ()))
    assert text.text == "a\ufffdb"
    assert well_formed("\ud83d\ude00") == "\U0001f600"


def test_server_without_log_probabilities_gets_only_votes():
    choice, requests = ask(WITHOUT, choose())
    assert (choice.log_probabilities, choice.problem, requests) == (None, "no log-probabilities given", [])
    texts = iter(["A", "(B)", "A.", "neither", "A"])
    choice, requests = ask(WITHOUT, choose(votes=5), lambda request: reply(next(texts), ()))
    assert choice.votes == (3, 1)
    assert (len(requests), len({request.key for request in requests})) == (5, 5)
    assert {request.temperature for request in requests} == {1.0}
    assert {request.top_log_probabilities for request in requests} == {0}


def test_votes_count_when_more_than_half_can_be_read():
    texts = iter(["A", "B", "either", "hm"])
    choice, _ = ask(WITHOUT, choose(votes=4), lambda request: reply(next(texts), ()))
    assert (choice.votes, choice.problem) == ((), "votes that cannot be read")


def test_reply_without_requested_log_probabilities_is_recognised():
    choice, _ = ask(CHAT, choose(), lambda request: reply("A", ()))
    assert (choice.log_probabilities, choice.problem) == (None, "no log-probabilities given")


def test_the_first_generated_token_is_what_is_read():
    second = TokenAlternatives(token="B", log_probability=0.0, top=(("B", 0.0),))
    first = TokenAlternatives(token="A", log_probability=-0.1, top=(("A", math.log(0.9)), ("B", math.log(0.1))))
    choice, _ = ask(CHAT, choose(), lambda request: reply(log_probabilities=(first, second)))
    assert choice.log_probabilities[0] - choice.log_probabilities[1] == pytest.approx(math.log(9))


def test_format_that_no_endpoint_answers_is_refused_with_remedy():
    question = yes_no_mean_text((Turn("user", "Hi"),), "x", "Good?")
    with pytest.raises(DataError, match=r"(?s)yes_no_mean.*no endpoint gives.*yes_no, or a judge in process"):
        ask(CHAT, choose(question=question, choices=("Y", "N")))


def test_replies_of_several_servers_keep_the_order_of_questions():
    pools = {name: ScriptedPool(lambda request: reply(f"by {request.model}", ())) for name in ("policy", "critic")}
    answering = Answering(None, {name: ServedModel(name, name, CHAT, pool) for name, pool in pools.items()})
    asks = [sample(role=role) for role in ("critic", "policy", "policy", "critic")]
    assert [text.text for text in answering.submit(asks).result()] == [
        "by critic",
        "by policy",
        "by policy",
        "by critic",
    ]
    assert answering.submit([]).result() == []


def test_a_failure_of_one_server_reaches_whoever_waits():
    class Failing(ScriptedPool):
        def submit(self, requests):
            future = super().submit(requests)
            broken = type(future)()
            broken.set_exception(StageError("out of attempts"))
            return broken

    bad = ServedModel("a", "a", CHAT, Failing(lambda request: reply()))
    good = ServedModel("b", "b", CHAT, ScriptedPool(lambda request: reply()))
    with pytest.raises(StageError, match="out of attempts"):
        Answering(None, {"a": bad, "b": good}).submit([sample(role="a"), sample(role="b")]).result()


def test_enough_batches_are_under_way_to_fill_all_endpoints_twice():
    assert batches_under_way([], 64) == 1
    assert batches_under_way([Serving(endpoint="x", concurrency=64)], 64) == 2
    assert batches_under_way([Serving(endpoint="x", also_endpoints=("y",), concurrency=100)], 64) == 8
