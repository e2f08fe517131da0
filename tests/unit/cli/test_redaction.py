"""Secrets that are planted in options, variables and files are in nothing that is printed."""

import sys

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import CharterError, Problem, SpecError
from charter.redaction import hide_output, holds_secret, without_secrets, without_shapes, without_value

SECRETS = (
    "sk-ant-api03-AAAAbbbb1111", "hf_AAAAbbbbccccdddd", "ghp_AAAAbbbbccccdddd1111", "AKIAABCDEFGHIJKLMNOP",
    "xoxb-1111-2222-AAAA", "AIzaSyAAAABBBBCCCCDDDDEEEE1", "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4",
)  # fmt: skip
MORE_SECRETS = (
    "ghr_AAAAbbbbccccdddd1111", "ASIAABCDEFGHIJKLMNOP", "npm_AAAAbbbbccccddddeeeeffffgggghhhh1111",
    "glpat-AAAAbbbbccccdddd1111", "https://hooks.slack.com/services/T0000/B0000/AAAAbbbb",
    "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----",
)  # fmt: skip
PLACES = (
    "https://Winter2026@host/v1", "https://me:Winter2026@host", "postgresql://me:Win/ter@Winter2026@host/db",
    "Authorization: Basic Winter2026", "'authorization': 'Token Winter2026'", "charter x --api-key Winter2026",
    "https://s/?sig=Winter2026", "https://s/?a=b&X-Amz-Signature=Winter2026&c=d", "AccountKey=Winter2026;x",
    "https://s/?X-Amz-Security-Token=Winter2026", "api_key: |\n  first\n  Winter2026\nnext: 1",
    "api_key: >-\n\n  Winter2026",
)  # fmt: skip
PLAIN = (
    "https://host:8080/a@b", "git@github.com:x/y", "ssh://git@github.com/x", "postgresql://me@host/db", "s3://b/k@2",
    "sk-small-model-7b", "hf_datasets", "give --token env:NAME or --token file:PATH", "--token takes the place",
    '{"usd_per_token": 0.5, "sort_key": "time"}', "a basic configuration of 12 tokens: 3", "task-0001abcdefgh",
)  # fmt: skip
NAMES = ("api_key", "API_KEY", "token", "hf_token", "password", "secret", "aws_secret_access_key", "access_key")


@pytest.mark.parametrize("secret", SECRETS)
def test_known_shapes_are_hidden_wherever_they_stand(secret):
    for text in (f"{secret}", f"key: {secret}", f"found '{secret}', wanted a word", f"Authorization: Bearer {secret}"):
        assert secret not in without_secrets(text)


@pytest.mark.parametrize("secret", MORE_SECRETS)
def test_sure_shapes_are_hidden_and_refused(secret):
    assert holds_secret(f"is {secret} good")
    assert secret not in without_secrets(f"is {secret} good") + without_shapes(f"is {secret} good")


@pytest.mark.parametrize("text", PLACES)
def test_secrets_are_hidden_by_their_place(text):
    assert "Winter2026" not in without_secrets(f"said {text} here")


@pytest.mark.parametrize("text", PLAIN)
def test_what_charter_prints_on_purpose_stays(text):
    assert without_shapes(text) == text
    assert not holds_secret(text)


def test_a_stream_gets_what_was_written_less_secrets(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    hide_output()
    hide_output()
    assert sys.stdout.write("ghr_AAAAbbbb1111CCCC2222\n") == 25
    sys.stdout.writelines(["a\n", "https://Winter2026@host\n"])
    print("done", flush=True)
    assert capsys.readouterr().out == "(hidden)\na\nhttps://(hidden)@host\ndone\n"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("between", ["=", ": ", ": '", '": "'])
def test_values_of_secret_names_are_hidden(name, between):
    assert "Winter2026" not in without_secrets(f"--set serving.judge.{name}{between}Winter2026")


@pytest.mark.parametrize(
    "text",
    [
        "serving.judge.api_key: env:JUDGE_API_KEY", "api_key: file:~/.keys/judge", "max_new_tokens: 512",
        "tokens: 100M",
        "pipeline.sft.learning_rate: 1e-5", "the task-list of disk-0", "https://api.example.org/v1",
        "the key 'data' is missing",
        "models.judge.path: ./sk", "secrets of Kubernetes: none",
    ],
)  # fmt: skip
def test_plain_words_stay_as_they_are(text):
    assert without_secrets(text) == text


def test_words_of_charter_after_a_secrets_name_stay():
    problem = Problem(message="is not env:NAME or file:PATH", path="serving.judge.api_key")
    assert str(SpecError([problem])) == "serving.judge.api_key: is not env:NAME or file:PATH"


def test_problems_of_a_file_hide_what_their_line_quotes():
    problem = Problem(message="unknown key", file="charter.yaml", line=3, source_line="  signing_key: AAAAbbbb")
    assert "AAAAbbbb" not in str(SpecError([problem]))


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (("--set", "serving.judge.api_key=Winter2026"), {}),
        (("--set", "serving.judge.apikey=sk-live-Winter2026"), {}),
        (("--set", "serving.judge.key=Winter2026"), {}),
        (("--set", "serving.judge.signing_key=Winter2026"), {}),
        (("--set", "serving.judge.api_key=a Winter2026"), {}),
        ((), {"CHARTER_SERVING__JUDGE__API_KEY": "Winter2026"}),
    ],
)
def test_planted_secrets_are_not_printed(tmp_path, words, variables):
    runner = CliRunner()
    assert runner.invoke(app, ["init", "--template", "cai-smoke", str(tmp_path / "p")]).exit_code == 0
    result = runner.invoke(app, ["plan", "-C", str(tmp_path / "p"), *words], env=variables)
    said = result.output + str(result.exception)
    assert isinstance(result.exception, CharterError), said
    assert "Winter2026" not in said


def test_so_much_per_token_is_a_number_and_stays_readable():
    """The refusal of 8 of 4 experts had said `(hidden) than the 4 experts`."""
    told = "models.base.architecture.mixture.experts_per_token: expected a whole number, found the text 'x'"
    assert without_secrets(told) == told
    assert without_value("--set a.mixture.experts_per_token=8") == "--set a.mixture.experts_per_token=8"
    assert without_value("--set judge.user_token=8") == "--set judge.user_token=(hidden)"
