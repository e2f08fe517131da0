import json
import math
import re

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import DataError, UsageError
from charter.physics.constants import TrainingMemoryConstants, context_factor
from charter.physics.fitted import bundled

run = CliRunner().invoke


def ok(*args, code=0):
    result = run(app, list(args))
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stdout


def test_mem_prints_terms_that_add_up():
    report = json.loads(ok("plan", "mem", "Llama-3.1-8B", "--accelerator", "H100-80GB:8", "--json"))
    assert report["fits"] is True
    assert report["parameters"] == 8_030_261_248
    assert report["layout"] == "zero3 dp8 mb1"
    assert sum(term["bytes"] for term in report["terms"]) == pytest.approx(report["peak_bytes"])
    assert all(term["formula"] and term["source"] for term in report["terms"])


@pytest.mark.parametrize(("given", "byte_count"), [((), 1), (("--weights", "bf16"), 2)])
def test_answers_are_counted_with_weights_as_released(given, byte_count):
    """DeepSeek-V3 is released in fp8."""
    options = ("--accelerator", "H200:8", "--mode", "infer", "--tensor", "8", "--json")
    report = json.loads(ok("plan", "mem", "DeepSeek-V3", *options, *given, code=0 if byte_count == 1 else 3))
    (weights,) = [term["bytes"] for term in report["terms"] if term["name"] == "weights"]
    assert weights == pytest.approx(byte_count * 671e9 / 8, rel=0.02)


def test_mem_says_what_does_not_fit_and_what_would():
    text = ok("plan", "mem", "Llama-3.1-8B", "-a", "H100", code=3)
    assert "does not fit" in text
    assert "The largest term is optimizer" in text
    assert re.search(r"2 accelerators, ZeRO stage 3, full recomputation: [\d.]+ GiB .*--on H100-SXM-80GB:2", text)


def test_mem_names_each_layout_that_would_fit_once():
    words = ("plan", "mem", "Llama-3.1-70B", "--rank", "16", "--on", "H100:8", "--json")
    report = json.loads(ok(*words, code=3))
    options = [item["options"] for item in report["would_fit"]]
    assert options[0] == "--recompute full"
    assert len(set(options)) == len(options)
    assert ok(*words, *options[0].split()), "what is named fits"


def test_mem_offers_the_host_where_nothing_less_fits():
    """Inputs of layers of one long row, by the engine that can move them; a layout that needs less is named alone."""
    words = (
        "plan",
        "mem",
        "Llama-3.1-8B",
        "--rank",
        "16",
        "--on",
        "H100",
        "--recompute",
        "full",
        "--seq-len",
        "131072",
    )
    report = json.loads(ok(*words, "--json", code=3))
    assert report["would_fit"][0]["options"] == "--offload-activations"
    away = json.loads(ok(*words, "--offload-activations", "--json"))
    assert "layer inputs" not in {term["name"] for term in away["terms"]}
    others = json.loads(ok(*words, "--stack", "deepspeed", "--json", code=3))["would_fit"]
    assert not any("--offload-activations" in item["options"] for item in others)
    refused = run(app, [*words[:-4], "--offload-activations"]).exception
    assert "found --mode lora --recompute none" in str(refused)


def test_mem_and_plan_have_one_limit():
    """What a plan may use of a device, not all that it has."""
    from charter.catalog.accelerators import get
    from charter.plan.knowledge import shipped

    report = json.loads(ok("plan", "mem", "Llama-3.1-8B", "-a", "H100", "--json", code=3))
    usable = shipped().usable_bytes(get("H100"))
    assert report["usable_bytes"] == usable < report["capacity_bytes"]
    assert all(item["peak_bytes"] <= usable for item in report["would_fit"])


def test_mem_explains_with_printed_formulas():
    words = ("plan", "mem", "Llama-3.1-8B", "-a", "H100-80GB:8", "--zero", "2", "--explain")
    report = json.loads(ok(*words, "--recompute", "selective", "--json"))
    zero2 = report["printed"][1]
    assert zero2["formula"] == "2P/TP + 14P/DP"
    assert zero2["printed_bytes"] == report["parameters"] * (2 + 14 / 8)
    assert report["printed"][3]["formula"] == "L (1 + (p - 1)/(p v)) s b h (10 + 24/t)"
    assert "L s b h 34 / N" in ok(*words)
    assert "printed" not in json.loads(ok(*words[:-1], "--json"))


def test_mem_of_serving_offers_smaller_weights():
    report = json.loads(ok("plan", "mem", "Llama-3.1-70B", "-a", "H100", "--mode", "infer", "--json", code=3))
    assert [item["change"] for item in report["would_fit"]] == [
        "weights in fp8",
        "weights in int4",
        "tensor parallel 2",
    ]
    assert ok("plan", "mem", "Llama-3.1-70B", "-a", "H100:2", "--mode", "infer", "--tensor", "2")


def test_mem_of_adapters():
    lora, qlora = (
        json.loads(ok("plan", "mem", "Llama-3.1-8B", "-a", "H100", "--mode", mode, "--seq-len", "1024", "--json"))
        for mode in ("lora", "qlora")
    )
    assert qlora["breakdown"]["parameters"] < 0.5 * lora["breakdown"]["parameters"]


def test_mem_reads_a_config_file(tmp_path):
    config = {
        "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        assert (
            json.loads(ok("plan", "mem", str(path), "-a", "T4", "--seq-len", "512", "--json"))["parameters"]
            == 124_439_808
        )


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (["plan", "mem", "Llama-3.1-9B", "-a", "H100"], UsageError, "did you mean"),
        (["plan", "mem", "gpt2", "-a", "H1000"], UsageError, "did you mean"),
        (["plan", "mem", "gpt2", "-a", "H100:8", "--tensor", "3"], UsageError, "multiple of 3"),
        (["plan", "mem", "gpt2", "-a", "H100:8", "--tensor", "8"], UsageError, "12 attention heads"),
        (["plan", "mem", "gpt2", "-a", "H100:16", "--pipeline", "16"], UsageError, "at most 12"),
        (["plan", "mem", "gpt2", "-a", "H100:8", "--expert", "8"], UsageError, "experts"),
        (["plan", "mem", "./nowhere", "-a", "H100"], DataError, "no such file"),
        (["plan", "mem", "gpt2", "-a", "H100", "--mode", "lora", "--explain"], UsageError, "--mode lora"),
        (["catalog", "prices", "H100", "--cloud", "lamda"], UsageError, "did you mean lambda"),
        (["catalog", "prices", "TPU7x"], UsageError, "no price is known"),
        (["catalog", "gpus", "H10O"], UsageError, "did you mean"),
    ],
)
def test_what_cannot_be_done_is_said(args, error, message):
    result = run(app, args)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


def test_gpus_lists_all_and_shows_one():
    report = json.loads(ok("catalog", "gpus", "--json"))
    assert len(report["accelerators"]) == 78
    assert all(item["source"] and item["confidence"] and item["as_of"] for item in report["accelerators"])
    assert "A100-SXM-80GB" in ok("catalog", "gpus")
    assert "data sheet" in ok("catalog", "gpus")
    one = ok("catalog", "gpus", "H100")
    assert "989.4" in one
    assert "from memory" in one


def test_prices_carry_date_and_confidence():
    report = json.loads(ok("catalog", "prices", "H100", "--json"))
    assert {offer["accelerator"] for offer in report["offers"]} == {"H100-SXM-80GB"}
    assert all(offer["as_of"] and offer["confidence"] and offer["source"] for offer in report["offers"])
    text = ok("catalog", "prices", "T4")
    assert "from memory" in text
    assert "not live prices" in " ".join(text.split())


def test_older_prices_show_on_request():
    latest, history = (
        json.loads(ok("catalog", "prices", "H100", "--json", *more))["offers"] for more in ([], ["--history"])
    )
    assert len(history) > len(latest)


def test_mem_of_other_optimizers():
    def report(*more):
        return json.loads(ok("plan", "mem", "Llama-3.1-8B", "-a", "H100-80GB:8", "--json", *more))

    size = 8_030_261_248 / 8
    for name, expected in (("adam", 8), ("adam8bit", 2 + 2 * 4 / 256), ("adafactor", 2 * 4 / 2048), ("sgd", 4)):
        found = report("--optimizer", name, "--micro-batch", "1")
        assert found["breakdown"]["optimizer"] == pytest.approx(expected * size)
    megatron = report("--optimizer", "adam8bit", "--precision", "megatron")
    assert megatron["breakdown"]["optimizer"] == pytest.approx((6 + 2 * 4 / 256) * size)


@pytest.mark.parametrize(
    ("mode", "stack", "quantity", "group"),
    [
        ("train", "native", "training-memory", "training memory"),
        ("train", "megatron", "training-memory", "training memory"),
        ("lora", "huggingface", "training-memory", "adapter memory"),
        ("infer", "native", "inference-memory", "inference memory"),
    ],
)
def test_mem_shows_the_calibrated_interval(mode, stack, quantity, group):
    """p90 / p50 is exp of the shipped half-width: of a stack that was measured, or of one that nobody did."""
    fit = bundled().quantities[quantity]
    known = "seen" if (stack if mode != "infer" else "transformers") in fit.measured_stacks else "unseen"
    args = ("plan", "mem", "Llama-3.1-8B", "-a", "H100-80GB:8", "--mode", mode, "--stack", stack)
    spread = json.loads(ok(*args, "--json"))["interval"]
    assert spread["p90"] / spread["p50"] == pytest.approx(math.exp(fit.spread.half_width(group, known)))
    assert re.search(r"p10 [\d.]+, p50 [\d.]+, p90 [\d.]+ GiB", ok(*args))


def test_mem_takes_the_fitted_constants_of_its_stack():
    shift = bundled().quantities["training-memory"].fitted.shift("native")
    report = json.loads(ok("plan", "mem", "gpt2", "-a", "A100-80GB:1", "--zero", "0", "--json"))
    context = next(term["bytes"] for term in report["terms"] if term["name"] == "device context")
    prior = float(TrainingMemoryConstants().context_bytes) * context_factor("A100-80GB")
    assert context == pytest.approx(prior * math.exp(shift["context_bytes"]))


def test_a_server_splits_long_prefills():
    """64 prompts of 32k at once would need 100 GiB of activations more, which no server does."""
    long = ("plan", "mem", "meta-llama/Llama-3.1-8B", "-a", "H100:8", "--mode", "infer", "--batch", "64", "--json")
    split, one_pass = (
        json.loads(ok(*long, "--seq-len", "32768", *more, code=3))
        for more in ((), ("--prefill-tokens", str(64 * 32768)))
    )

    def live(report):
        return next(term["bytes"] for term in report["terms"] if term["name"] == "one live layer")

    assert live(one_pass) == pytest.approx(64 * live(split))
    short = json.loads(ok(*long[:-1], "--seq-len", "16", "--json"))
    assert live(short) < live(split) / 4, "what is shorter than a pass is one"
