"""Command lines that Charter renders, read by OpenRLHF's own parsers and the checks after them."""

import json
import subprocess
from pathlib import Path

import pytest
from openrlhf_case import ACCEPTED

from charter.engines.openrlhf import OPENRLHF
from charter.engines.openrlhf.mapping import render_openrlhf

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".engines/openrlhf/bin/python"
PROBE = Path(__file__).with_name("probe_arguments.py")

APART = "[Warning] Using --colocate_all_models in async RLHF only colocates DeepSpeed models.\n"
SAYS = {
    "ppo, async": APART,
    "ppo, in flight": APART,
    "ppo, everything": "Recommend setting k3 to 'k1' when not using KL as a loss.\n",
}
"""What it remarks on without changing anything."""


def words_of(rendered):
    """The options behind the module, and the module."""
    at = next(i for i, word in enumerate(rendered.command) if word.startswith("openrlhf.cli."))
    return {"module": rendered.command[at], "words": list(rendered.command[at + 1 :])}


def read(asked):
    found = subprocess.run([PYTHON, PROBE], input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.fixture(scope="module")
def found():
    asked = [words_of(render_openrlhf(item)) for item in ACCEPTED.values()]
    return dict(zip(ACCEPTED, read(asked), strict=True))


def test_the_installed_version_is_the_one_that_was_mapped():
    code = "from importlib.metadata import version; print(version('openrlhf'))"
    assert (
        subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == OPENRLHF.version
    )


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.smoke
def test_its_own_parser_and_checks_accept_the_command_line(found, name):
    assert "error" not in found[name], found[name]["error"]


@pytest.mark.parametrize("name", ACCEPTED)
def test_it_warns_of_nothing_that_it_changes(found, name):
    said = found[name]["said"]
    assert said == SAYS.get(name, "")


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_option_reaches_its_place_with_its_value(found, name):
    shown = json.loads(render_openrlhf(ACCEPTED[name]).files["openrlhf.json"])
    for option, values in shown["options"].items():
        place = found[name]["options"]
        for part in option.removeprefix("--").split("."):
            place = place[part]
        got = place if isinstance(place, list) else [place]
        if not values:
            assert place is True, option
        elif option == "--algo.advantage.is_correction_threshold" or isinstance(got[0], int | float):
            assert [float(item) for item in got] == [float(item) for item in values], option
        else:
            assert got == values, option


@pytest.mark.parametrize(
    ("name", "added", "said"),
    [
        ("sft", ["--data.max_length", "3"], "unrecognized arguments: --data.max_length"),
        ("sft", ["--ds.param_dtype", "fp32"], "invalid choice: 'fp32'"),
        ("sft", ["--ds.zero_stage", "two"], "invalid int value"),
        ("sft, sdpa", ["--ds.ring_attn_size", "2"], "packing_samples must be enabled"),
        ("preference model", ["--model.pooling", "mean"], "unrecognized arguments"),
        ("dpo", ["--model.beta"], "expected one argument"),
        ("ppo", ["--algo.advantage.estimator", "grpo"], "invalid choice: 'grpo'"),
        ("grpo", ["--rollout.n_samples_per_prompt", "1"], "requires n_samples_per_prompt > 1"),
        ("ppo, async", ["--vllm.enable_sleep", "--train.colocate_all"], "not supported with --vllm.enable_sleep"),
        ("ppo", ["--rollout.micro_batch_size", "512"], "greater than or equal to the effective number of actor"),
    ],
)
def test_what_it_does_not_know_is_an_error(name, added, said):
    asked = words_of(render_openrlhf(ACCEPTED[name]))
    (found,) = read([asked | {"words": [*asked["words"], *added]}])
    assert said in found.get("error", "")
