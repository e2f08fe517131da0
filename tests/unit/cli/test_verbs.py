"""The command line: sixteen verbs, each imported when it is called; short and earlier spellings lead to them."""

import re
import shlex
import sys
import tempfile

import pytest
from typer.testing import CliRunner

from charter.cli.main import COMMANDS, OLD, SCREEN, SHORT, app, entry

MOST_VERBS = 16
LINES_OF_A_SCREEN = 30


def output_of(*words):
    result = CliRunner().invoke(app, words, prog_name="charter")
    return result.exit_code, result.output


def test_help_is_one_screen_with_every_top_level_verb():
    code, text = output_of("--help")
    assert code == 0
    assert len(text.splitlines()) <= LINES_OF_A_SCREEN
    assert max(map(len, text.splitlines())) <= 100
    shown = re.findall(r"^  ([a-z]+) ", text, re.MULTILINE)
    assert shown == [verb for verbs in SCREEN.values() for verb in verbs]
    assert set(shown) == {verb for verb in COMMANDS if " " not in verb}
    assert len(shown) <= MOST_VERBS


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_verb_names_itself_in_its_help(verb):
    code, text = output_of(*verb.split(), "--help")
    assert code == 0
    assert f"Usage: charter {verb}" in text


@pytest.mark.parametrize("words", ["status", "report --text", "cost", "cost report", "cost budget"])
def test_a_project_may_be_named_without_c(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    line = words.split()
    plain, short = (CliRunner().invoke(app, [*line, *more]) for more in (["-C", "demo"], ["demo"]))
    assert (str(short.exception), short.output) == (str(plain.exception), plain.output)
    assert "demo" in str(short.exception) + short.output


@pytest.mark.parametrize("verb", sorted({name.split()[0] for name in COMMANDS if " " in name}))
def test_help_of_a_verb_names_those_below_it(verb):
    text = " ".join(output_of(verb, "--help")[1].split())
    below = [name.split()[1] for name in COMMANDS if name.startswith(f"{verb} ")]
    assert [name for name in below if name not in text] == []
    assert "..." not in text.partition("Commands:")[2], "a sentence is cut"


@pytest.mark.parametrize(("word", "verb"), {**OLD, **SHORT}.items())
def test_other_spellings_lead_to_the_verb(word, verb, capsys):
    assert verb in COMMANDS
    code, text = output_of(word, "--help")
    assert code == 0
    assert f"Usage: charter {verb}" in text
    assert (f'"charter {word}" is now "charter {verb}"' in text) is (word in OLD)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("charter statsu", "did you mean status?"),
        ("charter mme gpt2", "did you mean plan mem?"),
        ("charter zzz", "charter has no command 'zzz'"),
        (
            "charter plan --reward x",
            "error[usage]: charter plan has no option --reward; charter plan --help lists them",
        ),
        ("charter run --dryrun", "error[usage]: charter run has no option --dryrun; did you mean --dry-run?"),
        ("charter plan sft 8B --spot", "has no option --spot: it is --market spot here"),
        ("charter plan sft 8B --cloud aws", "it is --set resources.infra=aws here"),
        ("charter plan sft 8B --engine trl", "say --set pipeline.sft.engine=trl"),
        ("charter plan sft 8B --samples 50k", "say how much there is with --tokens"),
        ("charter plan sft 8B --gpu h100 --num-gpus 8", "like --on h100:8"),
        ("charter plan grpo 7B --group-size 16", "say --set pipeline.rl.samples_per_prompt=16"),
        ("charter plan kto 8B --pairs 1k", "charter plan dpo 8B --pairs 1k --set pipeline.dpo.loss=kto"),
        ("charter plan qlora 70B", "charter plan sft 70B --lora 16 --set pipeline.sft.adapter.base_bits=4"),
        ("charter plan Llama-3.1-8B", "is a model; what shall it do? charter plan sft Llama-3.1-8B"),
        ("charter plan sft llama3", "no model is called 'llama3'; did you mean Llama-3.1-8B,"),
        ("charter plan sft 9B", "the sizes that stand for a model are 0.5B, 1B,"),
        ("charter plan mem 8B", "say on which accelerators: --on H100:8"),
        ("charter run sft 8B", "first charter plan sft 8B --save charter.yaml"),
        ("charter ask anything", "ask takes options, like charter plan ask --hardware H100:8"),
        ("charter validate charter.yaml", "charter check finds the errors of a project"),
        ("charter plan --alternatives x", "error[usage]: invalid value for '--alternatives': give a whole number;"),
        ("charter plan --alternatives -1", "give at least 0; charter plan --help explains"),
        ("charter plan --save", "error[usage]: option '--save' needs a value; charter plan --help explains"),
        ("charter logs", "error[usage]: name a stage, as charter status lists them; charter logs --help explains"),
        ("charter logs sft --lines -3", "give at least 0; charter logs --help explains"),
        ("charter start", "did you mean run?"),
        ("charter run -f charter.yaml", "name the file itself, charter run charter.yaml"),
        ("charter run --resume", "goes on from the last checkpoints by itself"),
        ("charter submit --yes", "charter submit asks no question"),
        ("charter -v", "it is --version"),
        ("charter catalog gpus shw H100", "error[usage]: no such command 'shw'; did you mean 'show'?"),
        ("charter --frob", "error[usage]: charter has no option --frob; charter --help lists them"),
    ],
)
def test_a_slip_is_answered_with_the_verb_that_was_meant(line, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    with pytest.raises(SystemExit) as left:
        entry()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Usage:" not in said


def test_the_module_answers_a_slip_as_the_command_does(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/lib/charter/cli/main.py", "run", "--resume"])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "charter.cli", raising=False)
    with pytest.raises(SystemExit):
        entry()
    assert "charter run has no option --resume: charter run goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("charter stop -C empty", "there is no charter.yaml in"),
        ("charter stop -C nowhere", "there is no file or directory nowhere"),
        ("charter plan demo/charter.yml", "demo/charter.yaml is there"),
        ("charter run charter.yaml", "one is in demo: give -C demo"),
        ("charter run demo/sft", "sft is a stage of the project here; charter run --only sft runs it"),
        ("charter artifacts checkpoints -C empty", "there is no charter.yaml in"),
        ("charter plan demo --set lr=1", "it is a key of a stage: pipeline.STAGE.learning_rate"),
        ("charter plan demo --set gpus=1", "it is a key of a stage: pipeline.STAGE.resources.accelerators"),
    ],
)
def test_a_wrong_place_is_answered_with_the_right_one(line, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert output_of("init", "demo", "--template", "cai-smoke")[0] == 0
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit) as left:
        entry()
    assert left.value.code == 2
    assert words in capsys.readouterr().err


def test_half_a_character_is_no_defect_of_charter(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert output_of("init", "demo", "--template", "cai-smoke")[0] == 0
    fee = "charter cost add licence -C demo --usd 5 --from 2026-01-01 --to 2026-02-01 --provider"
    monkeypatch.setattr(sys, "argv", [*fee.split(), "\udcff"])
    with pytest.raises(SystemExit) as left:
        entry()
    assert left.value.code == 2
    assert "half a character ('\\udcff')" in capsys.readouterr().err


def test_every_verb_has_a_line_on_the_screen_or_a_verb_above_it():
    assert {name.split()[0] for name in COMMANDS} == {verb for verbs in SCREEN.values() for verb in verbs}
    assert set(OLD.values()) | set(SHORT.values()) <= set(COMMANDS)


def test_a_plan_of_a_template_leaves_no_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, _ = output_of("plan", "-t", "cai-smoke", "--expand")
    assert code == 0
    assert list(tmp_path.iterdir()) == []
