"""`charter run serve` as a process: layouts, log-probabilities, limits, who may ask, and how it ends."""

import json
import os
import signal
import socket
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import forks
import psutil
import pytest
from waiting import eventually

torch = pytest.importorskip("torch")

from charter.data.dataset import Turn
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.parsing import parse_reply
from charter.inference.endpoint.transport import body_of, path_of
from charter.inference.generate import (
    SamplingSettings,
    answer_texts,
    generate,
)
from charter.inference.score import next_token_log_probabilities
from charter.models.chat import encode_prompt

pytestmark = pytest.mark.torch
HELLO = (Turn("user", "Tell me about rain."),)
QUESTION = "Conversation:\nHuman: Tell me about {topic}.\n\n(A) I know {topic}.\n(B) No.\nThe better answer is ("


def reply_to(server, **changes):
    """What the strict reader of replies makes of an answer."""
    request = CallRequest(**({"declared": "judge", "model": "judge", "turns": HELLO, "max_new_tokens": 12} | changes))
    status, found = server.ask("/v1" + path_of(request), body_of(request))
    assert status == 200, found
    return parse_reply(json.dumps(found).encode(), request).reply


def test_it_says_what_it_serves(server):
    assert server.ask("/health") == (200, {"status": "ok"})
    status, found = server.ask("/v1/models")
    assert (status, [item["id"] for item in found["data"]]) == (200, ["judge"])
    assert found["data"][0]["max_model_len"] == 256


def test_a_seed_draws_what_the_same_seed_draws_in_process(server, judge):
    settings = SamplingSettings(12)
    prompt = encode_prompt(judge.tokenizer, HELLO)
    answers = generate(judge, [prompt], seeds=[5], settings=settings)
    found = reply_to(server, seed=5)
    assert found.text.strip() == answer_texts(judge, answers)[0]
    assert found.completion_tokens == int(answers.answer_mask_BR.sum())
    assert found.prompt_tokens == len(prompt)
    assert found.cached_tokens == 0
    assert found.text != reply_to(server, seed=6).text


def test_the_same_request_gives_the_same_answer(server):
    bodies = [{"model": "judge", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}] * 2
    first, second = (server.ask("/v1/chat/completions", body) for body in bodies)
    assert first == second
    assert first[0] == 200


def test_log_probabilities_of_a_choice_are_those_in_process(server, judge):
    ids = [judge.tokenizer(letter)["input_ids"][0] for letter in ("A", "B")]
    for topic in ("bread", "the moon", "old maps"):
        question = QUESTION.format(topic=topic)
        own = next_token_log_probabilities(judge, [judge.tokenizer(question)["input_ids"]], ids)[0].tolist()
        found = reply_to(server, turns=(), prompt=question, max_new_tokens=1, top_log_probabilities=20)
        top = dict(found.log_probabilities[0].top)
        assert len(found.log_probabilities[0].top) <= 20
        assert [top["A"], top["B"]] == pytest.approx(own, abs=1e-4)


def test_tokens_and_alternatives_of_a_chat_fit_its_text(server):
    found = reply_to(server, top_log_probabilities=3, temperature=0.0)
    assert found.finish_reason == "length"
    assert len(found.log_probabilities) == found.completion_tokens == 12
    for token in found.log_probabilities:
        assert token.top[0] == (token.token, token.log_probability), "temperature 0 takes the likeliest"
        assert [value for _, value in token.top] == sorted((value for _, value in token.top), reverse=True)


def test_an_answer_goes_on_from_how_it_begins(server, judge):
    prefill = "The better answer is ("
    prompt = encode_prompt(judge.tokenizer, HELLO) + judge.tokenizer(prefill)["input_ids"]
    ids = [judge.tokenizer(letter)["input_ids"][0] for letter in ("A", "B")]
    own = next_token_log_probabilities(judge, [prompt], ids)[0].tolist()
    found = reply_to(server, prefill=prefill, max_new_tokens=1, top_log_probabilities=20)
    assert found.prompt_tokens == len(prompt)
    top = dict(found.log_probabilities[0].top)
    assert [top["A"], top["B"]] == pytest.approx(own, abs=1e-4)


def test_an_answer_ends_before_a_stop_sequence(server):
    whole = reply_to(server, seed=1, max_new_tokens=40)
    stop = whole.text[len(whole.text) // 2 :][:3]
    found = reply_to(server, seed=1, max_new_tokens=40, stop=(stop, "never"))
    assert found.text == whole.text[: whole.text.index(stop)]
    assert found.finish_reason == "stop"
    assert found.completion_tokens < whole.completion_tokens


def test_requests_at_once_are_answered_as_one_by_one(server):
    """Rounding depends on what is computed together; at temperature 0 these answers stay the same."""
    turns = [(Turn("user", f"Tell me about {topic}."),) for topic in ("rain", "chess", "bread", "maps")] * 3
    alone = [reply_to(server, turns=item, temperature=0.0).text for item in turns[:4]] * 3
    with ThreadPoolExecutor(12) as threads:
        together = list(threads.map(lambda item: reply_to(server, turns=item, temperature=0.0).text, turns))
    assert together == alone


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"messages": [{"role": "user", "content": "word " * 400}]}, 400, "context has 256 tokens"),
        ({"max_tokens": 300}, 400, "context has 256 tokens"),
        ({"n": 2}, 400, "n: "),
        ({"model": "gpt"}, 404, "'judge' is"),
        ({"min_tokens": 9, "max_tokens": 3}, 400, "min_tokens"),
    ],
)
def test_what_cannot_be_answered_is_an_error_object(server, changes, status, said):
    body = {"model": "judge", "messages": [{"role": "user", "content": "Hi"}]} | changes
    found, reply = server.ask("/v1/chat/completions", body)
    assert found == status
    assert said in reply["error"]["message"]


def test_only_json_of_a_bounded_size_under_this_machines_names_is_read(server):
    ask = server.ask
    assert ask("/v1/chat/completions", b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert ask("/v1/chat/completions", b" " * (5 * 2**20))[0] == 413
    assert ask("/v1/models", headers={"Host": "evil.example"})[0] == 403
    assert ask("/v1/models", headers={"Host": "localhost:1"})[0] == 200
    assert ask("/v1/other")[0] == 404
    assert ask("/v1/models", b"{}")[0] == 405


def test_a_token_is_asked_for_and_the_server_ends_cleanly(judge_dir, started):
    key = "a-token-of-some-length"
    with started(judge_dir, "--token", "env:SERVE_KEY", environment=os.environ | {"SERVE_KEY": key}) as client:
        assert client.ask("/health")[0] == 200
        assert client.ask("/v1/models")[0] == 401
        assert client.ask("/v1/models", headers={"Authorization": f"Bearer {key}x"})[0] == 401
        assert client.ask("/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200
        body = {"model": "judge", "prompt": "Tell", "max_tokens": 250, "min_tokens": 250}
        request = urllib.request.Request(
            client.address + "/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(lambda: urllib.request.urlopen(request, timeout=300).status)
            code, out, err = client.stop()
            ended = asked.exception(timeout=300)
        assert code == 0
        assert "Traceback" not in err
        assert key not in out + err
        assert ended is None or "503" in str(ended) or isinstance(ended, OSError)


def refusal(*options):
    command = [sys.executable, "-m", "charter.cli.main", "run", "serve", *options]
    done = forks.run(command, preload=forks.STAGES, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_other_machines_are_not_let_in_without_a_token(judge_dir):
    code, told = refusal(str(judge_dir), "--host", "0.0.0.0")
    assert code == 2
    assert "--token env:NAME" in told


def test_what_is_no_language_model_is_refused(tmp_path, judge_dir):
    assert refusal(str(tmp_path))[0] == 8
    (tmp_path / "charter_head.json").write_text("{}")
    code, told = refusal(str(tmp_path))
    assert code == 8
    assert "preference model" in told


def test_a_port_that_is_taken_is_told(server, judge_dir):
    code, told = refusal(str(judge_dir), "--port", str(server.port))
    assert code == 2
    assert "cannot listen" in told


def connections_to(port):
    """How many this process has that are set up."""
    found = psutil.Process().net_connections("tcp4")
    return sum(item.status == psutil.CONN_ESTABLISHED and item.raddr.port == port for item in found)


LONG = {"model": "judge", "prompt": "Tell", "max_tokens": 250, "min_tokens": 250}


def test_a_client_that_goes_away_takes_nothing_from_the_next(server):
    """Its answer is given up at the next token, and the server goes on."""
    host, _, port = server.address.removeprefix("http://").partition(":")
    body = json.dumps(LONG).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    for _ in range(3):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert reply_to(server, seed=5).text == reply_to(server, seed=5).text


def test_too_many_requests_are_told_to_come_back_and_alone_each_has_its_bits(judge_dir, started):
    """One is computed, one waits: of many at once some must be refused; those answered agree byte for byte.

    The server stands still until all are connected: they are there at once, however slow this process is.
    """
    body = LONG | {"seed": 3, "max_tokens": 60, "min_tokens": 60, "logprobs": 5}
    with started(judge_dir, "--batch", "1", "--waiting", "1", "--name", "judge") as client:
        alone = client.ask("/v1/completions", body)
        client.process.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(16) as threads:
            asked = [threads.submit(client.ask, "/v1/completions", body) for _ in range(16)]
            eventually(lambda: connections_to(client.port) >= 16)
            client.process.send_signal(signal.SIGCONT)
            found = [item.result() for item in asked]
    assert alone[0] == 200
    assert {status for status, _ in found} == {200, 429}
    assert all(reply == alone[1] for status, reply in found if status == 200)
    refused = next(reply for status, reply in found if status == 429)
    assert refused["error"]["type"] == "rate_limit_error"
