"""The vLLM adapter against a program that speaks its protocol and breaks on purpose."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from waiting import eventually

torch = pytest.importorskip("torch")

from tiny import language_model

from charter.errors import StageError
from charter.inference.generate import (
    SamplingSettings,
    generate,
)
from charter.inference.generator import (
    PYTHON,
    NativeGenerator,
    VllmGenerator,
    VllmOptions,
    vllm_command,
)

pytestmark = pytest.mark.torch

FAKE = Path(__file__).with_name("fake_vllm.py")
PROMPTS, SEEDS = [[5, 6, 7], [8]], [3, 1]
SETTINGS = SamplingSettings(max_new_tokens=5)
QUICK = VllmOptions(start_seconds=60, sync_seconds=60, sample_seconds=60)


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch):
    monkeypatch.setattr("charter.inference.generator.BUCKET_BYTES", 20_000)


@contextlib.contextmanager
def fake(tmp_path, fault="none", *, dtype="fp32", options=QUICK, device="cpu"):
    policy = language_model()
    policy.model.to(device)
    generator = VllmGenerator(
        policy,
        tmp_path,
        dtype=dtype,
        options=options,
        command=lambda: [sys.executable, str(FAKE), fault, str(os.getpid())],
    )
    try:
        yield generator, policy
    finally:
        generator.close()


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def sample(generator, **changes):
    return generator.sample(PROMPTS, seeds=SEEDS, settings=SETTINGS, **changes)


def load_and_sample(generator, policy):
    generator.update_weights(policy.model.state_dict().items(), version=4)
    return sample(generator, version=4)


def test_answers_come_back_padded_and_masked_with_their_log_probabilities(tmp_path):
    with fake(tmp_path) as (generator, policy):
        generator.update_weights(policy.model.state_dict().items(), version=4)
        answers = sample(generator, prompt_width=4, version=4)
    padding = policy.padding_id
    assert answers.prompt_BQ.tolist() == [[padding, 5, 6, 7], [padding, padding, padding, 8]]
    assert answers.prompt_mask_BQ.tolist() == [[0, 1, 1, 1], [0, 0, 0, 1]]
    assert answers.answer_BR.tolist() == [[13, 14, 15, 16], [11, 12, padding, padding]]
    assert answers.answer_mask_BR.tolist() == [[True] * 4, [True, True, False, False]]
    assert answers.log_probability_BR.tolist() == [[-0.5, -1.0, -1.5, -2.0], [-0.5, -1.0, 0.0, 0.0]]


def test_answers_stay_on_the_host_wherever_the_policy_is(tmp_path):
    """They are sent to every process of the stage, which would open them on the first one's GPU."""
    with fake(tmp_path, device="meta") as (generator, _):
        answers = load_and_sample(generator, language_model())
    assert {getattr(answers, item.name).device.type for item in fields(answers)} == {"cpu"}
    there = answers.rows(slice(1, 2), torch.device("meta"))
    assert {getattr(there, item.name).device.type for item in fields(there)} == {"meta"}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_weights_go_over_in_several_files_and_in_the_data_type_that_samples(tmp_path, dtype):
    with fake(tmp_path, dtype=dtype) as (generator, policy):
        assert generator.versions["dtype"] == {"fp32": "float32", "bf16": "bfloat16"}[dtype]
        generator.update_weights(lambda: policy.model.state_dict().items(), version=0)
        assert generator.version == 0
        assert list(Path(generator._scratch.name).iterdir()) == [Path(generator._scratch.name) / "config.json"]


def test_sampling_needs_the_version_that_is_asked(tmp_path):
    with fake(tmp_path) as (generator, policy):
        assert generator.version is None
        with pytest.raises(StageError, match="no weights yet"):
            sample(generator)
        generator.update_weights(policy.model.state_dict().items(), version=4)
        with pytest.raises(StageError, match="asks for policy version 5, the generator has policy version 4"):
            sample(generator, version=5)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies in load", r"ended during load \(signal 9\)(.|\n)*fell off the bus"),
        ("hangs in load", "did not answer load within 1 s"),
        ("refuses load", "could not load: RuntimeError: no such thing as a free lunch"),
        ("garbage in load", "which is not the protocol"),
        ("half a frame in load", r"ended during load \(exit 3\)"),
        ("no JSON in load", "which is not the protocol"),
        ("old answer in load", "which is not the protocol"),
        ("loads wrong version", "loaded policy version 3 instead of 4"),
        ("loads nothing known", "none of those sent can be found"),
        ("dies in sample", r"ended during sample \(signal 9\)"),
        ("hangs in sample", "did not answer sample within 1 s"),
        ("garbage in sample", "which is not the protocol"),
        ("samples wrong version", "sampled by policy version 3, not 4"),
        ("answers too few", "did not answer each of 2 prompts"),
        ("answers too long", "gave 6 tokens with 6 log-probabilities"),
        ("forgets a log-probability", "gave 4 tokens with 3 log-probabilities"),
    ],
)
def test_every_fault_is_a_stage_error_and_the_end_of_the_program(tmp_path, fault, said):
    short = replace(QUICK, sync_seconds=1, sample_seconds=1) if "hangs" in fault else QUICK
    with fake(tmp_path, fault, options=short) as (generator, policy):
        with pytest.raises(StageError, match=said):
            load_and_sample(generator, policy)
        assert is_gone(generator.pid)
        with pytest.raises(StageError):
            sample(generator)


@pytest.mark.parametrize("fault", ["dies in start", "hangs in start", "refuses start"])
def test_an_engine_that_does_not_start_is_a_stage_error(tmp_path, fault):
    with pytest.raises(StageError, match="start"), fake(tmp_path, fault, options=replace(QUICK, start_seconds=1)):
        pass


def test_an_engine_that_keeps_old_weights_is_found_out(tmp_path):
    with fake(tmp_path, "keeps old weights") as (generator, policy):
        generator.update_weights(policy.model.state_dict().items(), version=1)
        with torch.no_grad():
            policy.model.model.norm.weight[3] += 1e-3
        with pytest.raises(StageError, match=r"does not hold the weights of policy version 2: model\.norm\.weight"):
            generator.update_weights(policy.model.state_dict().items(), version=2)
        assert generator.version is None


def test_a_checkpoint_that_lacks_a_weight_is_refused(tmp_path):
    with fake(tmp_path) as (generator, policy):
        some = [item for item in policy.model.state_dict().items() if "layers.1.mlp.up_proj" not in item[0]]
        with pytest.raises(StageError, match=r"1 are missing, model\.layers\.1\.mlp\.up_proj\.weight the first"):
            generator.update_weights(some, version=1)
        assert generator.version is None


def test_after_sleep_the_weights_must_be_sent_again(tmp_path):
    with fake(tmp_path, options=replace(QUICK, sleep=True)) as (generator, policy):
        assert generator.versions["options"]["enable_sleep_mode"] is True
        generator.update_weights(policy.model.state_dict().items(), version=1)
        sample(generator)
        with pytest.raises(StageError, match="call update_weights first"):
            sample(generator, version=1)


def test_the_program_dies_with_its_parent(tmp_path):
    script = (
        "import sys, os; sys.path[:0] = [sys.argv[1]]; from pathlib import Path\n"
        "from charter.inference.generator import VllmProcess\n"
        "from charter.inference.generator import worker_environment\n"
        "command = [sys.executable, sys.argv[2], 'none', str(os.getpid())]\n"
        "p = VllmProcess('vLLM', command, environment=worker_environment(os.environ), log=Path(sys.argv[3]))\n"
        "print(p.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(FAKE.parent), str(FAKE), str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        child = int(parent.stdout.readline())
        eventually(lambda: b"fake_vllm" in Path(f"/proc/{child}/cmdline").read_bytes())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    eventually(lambda: is_gone(child))


def test_a_python_without_vllm_says_so(tmp_path):
    with pytest.raises(StageError, match="No module named 'vllm'"):
        VllmGenerator(language_model(), tmp_path, dtype="fp32", options=QUICK)


def test_the_python_of_vllm_is_taken_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv(PYTHON, str(tmp_path / "no" / "python"))
    assert vllm_command()[0] == str(tmp_path / "no" / "python")
    with pytest.raises(StageError, match="cannot start"):
        VllmGenerator(language_model(), tmp_path, dtype="fp32", options=QUICK)


def test_a_data_type_that_vllm_has_not_is_refused(tmp_path):
    with pytest.raises(StageError, match="fp64"):
        VllmGenerator(language_model(), tmp_path, dtype="fp64")


@pytest.mark.parametrize("at_once", [1, 2, 5, 64])
def test_answers_drawn_in_parts_are_those_drawn_at_once(at_once, monkeypatch):
    """Draws belong to an answer's seed; a smaller batch moves probabilities in fp32's last bits, and no draw here."""
    policy, sizes, real = language_model(), [], generate

    def watched(model, prompts, **more):
        sizes.append(len(prompts))
        return real(model, prompts, **more)

    monkeypatch.setattr("charter.inference.generator.generate", watched)
    prompts, seeds = [*PROMPTS, [7] * 9, [5, 6]], [*SEEDS, 11, 12]
    mine = NativeGenerator(policy, at_once=at_once).sample(prompts, seeds=seeds, settings=SETTINGS)
    theirs = generate(policy, prompts, seeds=seeds, settings=SETTINGS)
    assert sum(sizes) == len(prompts)
    assert max(sizes) == min(at_once, len(prompts))
    for name in ("prompt_BQ", "prompt_mask_BQ", "answer_BR", "answer_mask_BR"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name


def test_the_native_generator_is_generate_with_a_version():
    policy = language_model()
    generator = NativeGenerator(policy)
    assert generator.is_exact
    generator.update_weights([], version=7)
    mine = sample(generator, version=7)
    theirs = generate(policy, PROMPTS, seeds=SEEDS, settings=SETTINGS)
    assert torch.equal(mine.answer_BR, theirs.answer_BR)
    assert mine.log_probability_BR is None
    with pytest.raises(StageError, match="version 8"):
        sample(generator, version=8)
    generator.close()
