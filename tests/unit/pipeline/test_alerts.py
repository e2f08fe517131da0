"""Which events are alerts, that each is one once, and what the file may say of them. Pure, but for two files."""

import io
import urllib.request
from email.message import Message
from urllib.response import addinfourl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import UsageError
from charter.run.alert_sender import SECONDS_BETWEEN_TRIES, send_all
from charter.run.alerts import (
    SENT_FILE,
    Alert,
    AlertBook,
    SendError,
    alert_of,
    body_of,
    channels_of,
    message_of,
    sender_of,
)
from charter.spec.sections import Alerts, check_alerts
from charter.tracking.base import Secrets

SHARE = dict(
    event="budget_warning", time=5.0, message="p has cost $5", scope="project", name="p", limit_usd=10.0,
    state="warn", share=0.5, spent_usd=5.0,
)  # fmt: skip


def alert(**changes):
    values = dict(key="k", time=1.0, run="p", event="stage_failed", level="error", text="it broke")
    return Alert(**(values | changes))


def test_most_events_are_no_alerts():
    for kind in ("run_started", "stage_progress", "stage_done", "stage_restart", "run_done"):
        assert alert_of({"event": kind, "time": 1.0}, run="p") is None


def test_a_share_of_a_limit_is_one_alert_however_often_it_is_told():
    first = alert_of(SHARE, run="p")
    assert first.level == "warning"
    assert alert_of(SHARE | {"time": 99.0, "spent_usd": 5.5, "message": "another text"}, run="p").key == first.key
    for change in ({"share": 0.8}, {"limit_usd": 20.0}, {"name": "q"}, {"scope": "owner"}, {"state": "hold"}):
        assert alert_of(SHARE | change, run="p").key != first.key
    assert alert_of(SHARE, run="q").key != first.key
    assert alert_of(SHARE | {"share": 1.0}, run="p").level == "error"


def test_each_failure_is_an_alert_of_its_own():
    failed = {"event": "stage_failed", "stage": "ppo", "message": "out of memory", "time": 1.0}
    first, second = (alert_of(failed | {"time": moment}, run="p") for moment in (1.0, 2.0))
    assert first.key != second.key
    assert (first.level, first.text) == ("error", "stage ppo: out of memory")


def test_overoptimisation_is_one_alert_over_restarts_of_a_run():
    event = {"event": "overoptimisation", "stage": "rl", "message": "stage rl: parted", "at": 12, "time": 1.0}
    first = alert_of(event, run="p")
    assert (first.level, first.text) == ("warning", "stage rl: parted")
    assert alert_of(event | {"time": 2.0}, run="p").key == first.key
    assert alert_of(event | {"at": 13}, run="p").key != first.key


def test_the_book_takes_an_alert_once_and_knows_what_is_not_sent(tmp_path):
    book = AlertBook(tmp_path)
    assert book.unsent(("webhook",)) == ()
    assert [book.add(alert()), book.add(alert()), book.add(alert(key="l"))] == [True, False, True]
    book.mark(alert(), "webhook", at=2.0, error="down")
    assert [(item.key, channel) for item, channel in book.unsent(("webhook", "email"))] == [
        ("k", "webhook"), ("k", "email"), ("l", "webhook"), ("l", "email"),
    ]  # fmt: skip
    book.mark(alert(), "webhook", at=3.0)
    assert len(book.unsent(("webhook", "email"))) == 3
    with (book.directory / SENT_FILE).open("a") as file:
        file.write('{"key": "l", "chan')
    assert len(book.unsent(("webhook", "email"))) == 3


def test_what_cannot_be_sent_is_tried_again_with_longer_waits_until_the_time_is_up(tmp_path):
    book, waits, clock = AlertBook(tmp_path), [], [0.0]
    book.add(alert())
    settings = Alerts(webhook="env:CHARTER_TEST_NO_SUCH_VARIABLE")
    assert send_all(book, settings, sleep=waits.append, now=lambda: 0.0) is False
    assert waits == []  # a variable that is not set will not be set later

    def sleep(seconds):
        waits.append(seconds)
        clock[0] += seconds

    settings = Alerts(email=("a@b.c",), smtp="smtp://127.0.0.1:1")
    assert send_all(book, settings, sleep=sleep, now=lambda: clock[0], give_up_seconds=40) is False
    assert waits == list(SECONDS_BETWEEN_TRIES[: len(waits)])
    assert waits[-1] < sum(waits) <= 40


def test_a_channel_that_fails_is_asked_once_in_a_round_however_many_alerts_wait(tmp_path, monkeypatch):
    from charter.run import alert_sender

    book, asked = AlertBook(tmp_path), []
    for key in "abc":
        book.add(alert(key=key))

    def sender_of(channel, settings, secrets):
        def send(item):
            asked.append((channel, item.key))
            if channel == "webhook":
                raise SendError("down")

        return send

    monkeypatch.setattr(alert_sender, "sender_of", sender_of)
    settings = Alerts(webhook="env:HOOK", email=("a@b.c",), smtp="smtp://h")
    assert send_all(book, settings, sleep=lambda _: None, now=lambda: 0.0, give_up_seconds=0) is False
    assert asked == [("webhook", "a"), ("email", "a"), ("email", "b"), ("email", "c")]


def test_a_webhook_that_points_elsewhere_is_not_followed(monkeypatch):
    asked = []

    def http_open(handler, request):
        asked.append(request.full_url)
        headers = Message()
        headers["Location"] = "http://elsewhere.example/"
        answer = addinfourl(io.BytesIO(), headers, request.full_url, code=302)
        answer.msg = "Found"
        return answer

    monkeypatch.setattr(urllib.request.HTTPHandler, "http_open", http_open)
    monkeypatch.setenv("HOOK", "http://hooks.example/secret")
    with pytest.raises(SendError, match="the webhook answered 302"):
        sender_of("webhook", Alerts(webhook="env:HOOK"), Secrets())(alert())
    assert asked == ["http://hooks.example/secret"]


@given(st.text(), st.text())
def test_no_text_breaks_a_mail_or_a_post(text, run):
    made = alert(text=text, run=run)
    mail = message_of(made, Alerts(email=("a@example.com",), smtp="smtp://h:25"))
    assert "\n" not in str(mail["Subject"])
    assert mail.as_bytes()
    assert body_of(made)["text"] == f"[{run}] {text}"


def test_what_the_file_may_say():
    good = Alerts(webhook="env:HOOK", email=("ann@example.com",), smtp="smtps://mail:465", smtp_user="u",
                  smtp_password="file:~/.secret")  # fmt: skip
    assert list(check_alerts(good)) == []
    assert channels_of(good) == ("webhook", "email")
    for bad, where in (
        (Alerts(webhook="https://hooks.example/T0/B0/SECRET"), "alerts.webhook"),
        (Alerts(smtp_user="u", smtp_password="hunter2", email=("a@b",), smtp="smtp://h"), "alerts.smtp_password"),
        (Alerts(email=("nobody",), smtp="smtp://h"), "alerts.email"),
        (Alerts(email=("a@b",)), "alerts.smtp"),
        (Alerts(email=("a@b",), smtp="mail.example.com"), "alerts.smtp"),
        (Alerts(email=("a@b",), smtp="smtp://user:secret@h"), "alerts.smtp"),
        (Alerts(email=("a@b",), smtp="smtp://h", smtp_password="env:P"), "alerts.smtp_user"),
    ):
        (problem,) = check_alerts(bad)
        assert problem.path == where
        assert not any(secret in str(problem) for secret in ("SECRET", "hunter2", "secret@"))


def test_a_password_is_not_sent_without_encryption_to_another_machine(monkeypatch):
    from charter.run import alerts

    class Plain:
        def ehlo(self): ...
        def has_extn(self, name):
            return False

    with pytest.raises(UsageError, match="offers no encryption"):
        alerts._log_in(Plain(), "mail.example.com", "u", "hunter2")
