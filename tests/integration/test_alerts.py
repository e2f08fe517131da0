"""Alerts against real servers: sent once, again after a failure, after the run, without their secrets in any file."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

pytest.importorskip("aiosmtpd")

from alert_servers import mail_server, webhook

from charter.run.alert_sender import send_all
from charter.run.alerts import ALERTS_DIR, AlertBook, AlertListener, alert_of
from charter.spec.project import Project
from charter.spec.sections import Alerts

HANGS_AFTER_SECONDS = 120


def failed(moment=1.0):
    return {"event": "stage_failed", "stage": "ppo", "message": "out of memory", "time": moment}


def written(directory):
    return b"".join(path.read_bytes() for path in (directory / ALERTS_DIR).iterdir())


def all_end(listener):
    """Whether every sender of a run ends, with nothing left to send."""
    return [sender.wait(timeout=HANGS_AFTER_SECONDS) for sender in listener._senders].count(0) == len(listener._senders)


def quick(book, settings):
    return send_all(book, settings, sleep=lambda _: time.sleep(0.01))


@pytest.fixture
def book(tmp_path):
    made = AlertBook(tmp_path)
    made.add(alert_of(failed(), run="demo"))
    return made


def test_a_webhook_that_fails_at_first_gets_each_alert_once(book, tmp_path, monkeypatch):
    with webhook() as hook:
        hook.answers = [500, 429, 302]
        hook.location = "http://127.0.0.1:9/elsewhere"
        monkeypatch.setenv("HOOK", hook.url)
        assert quick(book, Alerts(webhook="env:HOOK"))
        assert quick(book, Alerts(webhook="env:HOOK"))
        assert [body["text"] for body in hook.posted] == ["[demo] stage ppo: out of memory"]
        assert set(hook.paths) == {"/hook/SECRET-PATH"}
    assert b"SECRET-PATH" not in written(tmp_path)
    assert b"the webhook answered 302" in written(tmp_path)


def test_mail_is_sent_once_with_a_login_and_after_a_refusal(book, tmp_path, monkeypatch):
    monkeypatch.setenv("MAIL_PASSWORD", "hunter2hunter2")
    with mail_server(password="hunter2hunter2") as server:
        server.refusals = 1
        settings = Alerts(
            email=("ann@example.com", "ben@example.com"), smtp=server.address, smtp_user="charter",
            smtp_password="env:MAIL_PASSWORD", sender="charter@example.com",
        )  # fmt: skip
        assert quick(book, settings)
        (mail,) = server.mails
    assert mail.rcpt_tos == ["ann@example.com", "ben@example.com"]
    assert b"Subject: [charter] error: demo: stage ppo: out of memory" in mail.content
    assert set(server.logins) == {"charter"}
    assert b"hunter2" not in written(tmp_path)


@pytest.mark.thorough
def test_a_wrong_password_is_said_without_it(book, tmp_path, monkeypatch):
    monkeypatch.setenv("MAIL_PASSWORD", "not-this-one")
    with mail_server(password="hunter2hunter2") as server:
        settings = Alerts(
            email=("ann@example.com",), smtp=server.address, smtp_user="charter", smtp_password="env:MAIL_PASSWORD"
        )
        assert not send_all(book, settings, sleep=lambda _: None, give_up_seconds=0)
        assert server.mails == []
    assert b"not-this-one" not in written(tmp_path)
    assert b"the mail server 127.0.0.1" in written(tmp_path)


def test_two_senders_at_once_send_each_alert_once(tmp_path, monkeypatch):
    book = AlertBook(tmp_path)
    for moment in range(20):
        book.add(alert_of(failed(float(moment)), run="demo"))
    with webhook() as hook:
        settings = json.dumps(asdict(Alerts(webhook="env:HOOK")))
        command = [sys.executable, "-m", "charter.run.alert_sender", "--run-dir", str(tmp_path)]
        senders = [
            subprocess.Popen([*command, "--settings", settings], env={**os.environ, "HOOK": hook.url}) for _ in range(3)
        ]
        assert [sender.wait(timeout=HANGS_AFTER_SECONDS) for sender in senders] == [0, 0, 0]
        keys = [body["key"] for body in hook.posted]
    assert len(keys) == len(set(keys)) == 20


def test_a_run_only_writes_down_and_a_process_of_its_own_sends(tmp_path, monkeypatch):
    with webhook() as hook:
        monkeypatch.setenv("HOOK", hook.url)
        project = Project(name="demo", models={}, pipeline={}, alerts=Alerts(webhook="env:HOOK"))
        listener = AlertListener(project, tmp_path)
        for _ in range(2):
            listener(failed())
        listener({"event": "stage_done", "stage": "sft", "time": 2.0})
        hook.wait_for(1)
        listener(failed(3.0))
        hook.wait_for(2)
        assert all_end(listener)
        assert [body["time"] for body in hook.posted] == [1.0, 3.0]


def test_an_alert_arrives_however_long_after_the_last_one_it_is_written(tmp_path, monkeypatch):
    """The sender of the alert before may look again, may have looked for the last time, or may have ended."""
    with webhook() as hook:
        monkeypatch.setenv("HOOK", hook.url)
        project = Project(name="demo", models={}, pipeline={}, alerts=Alerts(webhook="env:HOOK"))
        listener = AlertListener(project, tmp_path)
        for number in range(1, 16):
            listener(failed(float(number)))
            hook.wait_for(number)
            time.sleep(number * 0.04)
        assert all_end(listener)
        assert [body["time"] for body in hook.posted] == [float(number) for number in range(1, 16)]


def test_a_server_that_never_answers_does_not_hold_the_run_up(tmp_path, monkeypatch):
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(HANGS_AFTER_SECONDS)
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        project = Project(name="demo", models={}, pipeline={}, alerts=Alerts(webhook="env:HOOK"))
        listener = AlertListener(project, tmp_path)
        listener(failed())
        connection, _ = silent.accept()  # the sender has come, and waits for an answer
        for moment in range(2, 50):
            listener(failed(float(moment)))
        (sender,) = listener._senders
        assert sender.poll() is None
        sender.kill()
        sender.wait()
        connection.close()
    assert len(AlertBook(tmp_path).unsent(("webhook",))) == 49


def test_what_a_run_left_is_sent_when_the_next_one_starts(book, tmp_path, monkeypatch):
    with webhook() as hook:
        monkeypatch.setenv("HOOK", hook.url)
        project = Project(name="demo", models={}, pipeline={}, alerts=Alerts(webhook="env:HOOK"))
        listener = AlertListener(project, tmp_path)
        listener({"event": "run_started", "time": 9.0})
        hook.wait_for(1)
        assert all_end(listener)
        quiet = AlertListener(project, tmp_path)
        quiet({"event": "run_started", "time": 10.0})
        assert quiet._senders == []
