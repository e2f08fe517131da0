"""Every reader of a file that somebody else may have written, each with a small valid file, and what files suffer.

Hypothesis damages the files (tests/unit/test_reader_fuzz.py), and libFuzzer does by what it sees of the code
(tests/chaos/fuzz_reader.py).
"""

import io
import json
import tarfile
from datetime import date
from importlib.resources import files

from charter.artifacts.data_versions import pointer_damage
from charter.artifacts.job import read_planned_step
from charter.artifacts.safetensors_file import read_header
from charter.artifacts.stage_state import read_progress
from charter.catalog.huggingface import read_config
from charter.catalog.price_book import read_price_book
from charter.catalog.price_import import Import, read_prices
from charter.cost.forecast import paced
from charter.data.dataset import Turn, read_pairs, read_prompts
from charter.engines.huggingface.adapter import read_state
from charter.engines.project import load_project
from charter.errors import CharterError
from charter.feedback.comparing import load_rubric
from charter.feedback.constitution import load_constitution
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.parsing import InvalidReplyError, parse_reply
from charter.inference.serve.protocol import RequestError, read_request
from charter.ledger.bill import read_bill
from charter.ledger.rebuilding import rebuilt_attempts
from charter.ledger.reconcile import read_provider_log
from charter.physics import fitted
from charter.physics.scaling.fit import read_runs
from charter.physics.scaling.study import read_law
from charter.report.overview import overview
from charter.report.read import read_run
from charter.resilience.spot import read_trace
from charter.run.imports.logs import read_engine_log, read_run_directory
from charter.spec.project import DataSpec
from charter.templates.shipped import shipped_bytes
from charter.tracking.base import read_metrics
from charter.validation.rows.measurement import read_measurements

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 512,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
}  # fmt: skip
PLAN = {
    "schema": "charter.plan/1",
    "stages": [
        {"name": "sft", "kind": "sft", "seconds": {"p10": 1.0, "p50": 2.0, "p90": 3.0}, "accelerator": "H100",
         "usd": {"p10": 1.0, "p50": 2.0, "p90": 3.0}, "breakdown": {"seconds": {"start": 1.5}, "usd": None}},
    ],
}  # fmt: skip
STATE = {
    "global_step": 2, "max_steps": 4, "log_history": [{"step": 1, "loss": 2.0, "epoch": 0.1}, {"step": 2, "loss": 1.5}],
}  # fmt: skip
REPLY = {
    "id": "c1", "object": "chat.completion", "model": "judge", "usage": {"prompt_tokens": 5, "completion_tokens": 1},
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "A"},
                 "logprobs": {"content": [
                     {"token": "A", "logprob": -0.1, "top_logprobs": [{"token": "A", "logprob": -0.1}]}]}}],
}  # fmt: skip
ASKED = CallRequest(declared="judge", model="judge", turns=(Turn("user", "A or B?"),), max_new_tokens=1,
                    top_log_probabilities=1)  # fmt: skip
PRICES = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
    "p5.48xlarge,H100,8.0,192.0,2048.0,,50.0,18.0,us-east-1,use1-az2\n"
)
BILL = "cost_usd,resource,start,end,hours\n20,17,2026-07-01T00:00:00Z,2026-07-01T01:00:00Z,8\n"
LOG = '{"request_id": "call-1", "prompt_tokens": 5, "completion_tokens": 1, "cost_usd": 0.001}\n'
TIMINGS = {"finished_at": 1.7e9, "seconds": 10.0, "useful_seconds": 8.0, "cost_usd": 0.5}
PROGRESS = {"step": 3, "target_step": 9, "unit": "step", "rate_steps": 2, "rate_per_second": 0.5}
METRIC = '{"step": 1, "time": 1700000000.5, "name": "loss", "value": 2.5}\n'
TRACE = {"metadata": {"gap_seconds": 195}, "data": [1, 1, 0, 2]}
CONSTITUTION = shipped_bytes("data/principles.yaml").decode()
RUBRIC = "schema: charter.rubric/v1\ncriteria: ['Is it true?', {id: brief, text: 'Is it brief?', weight: 2}]\n"
VERL = "step:1 - training/global_step:1 - perf/time_per_step:2.0\nstep:2 - training/global_step:2 - timing_s/step:2.1\n"
BUNDLED_PRICES = (files("charter.catalog") / "data" / "prices.csv").read_text(encoding="utf-8")
OWN_PRICES = "\n".join(BUNDLED_PRICES.splitlines()[:3]) + "\n"
CALIBRATION = json.dumps({"quantities": {}, "source": "a file", "as_of": "2026", "sha256": "0", "paces": []})
HEADER = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
RUNS = "parameters,tokens,loss,epochs\n1e8,2e9,3.1,2\n1e9,2e10,2.6,1\n"
LAW = {
    "schema": "charter.scaling-law/1", "form": "kaplan", "source": "a file", "draws": [[8.8e13, 0.076, 5.4e13, 0.095]],
    "constants": {"size_scale": 8.8e13, "size_exponent": 0.076, "data_scale": 5.4e13, "data_exponent": 0.095},
    "range": {"parameters": [1e7, 1e9], "tokens": [1e9, 1e11], "compute_flops": [1e17, 1e20]}, "noise": 0.01,
}  # fmt: skip
MLFLOW, POINTS = "status: 3\nrun_id: abc\nstart_time: 1000\nend_time: 2000\n", "1000 3.0 1\n2000 2.0 2\n"
POINTER = "outs:\n- md5: 1b2cf535f27731c974343645a3985328\n  size: 3\n  hash: md5\n  path: rows.jsonl\n"
REQUEST = {
    "model": "m", "messages": [{"role": "user", "content": "A or B?"}], "max_tokens": 4, "temperature": 0.5, "seed": 1,
    "logprobs": True, "top_logprobs": 2, "stop": ["."],
}  # fmt: skip
TENSORS = (len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)).decode("latin-1")


def shard():
    """A tar of one sample."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        row = b'{"prompt": "How long?"}'
        member = tarfile.TarInfo("a.json")
        member.size = len(row)
        archive.addfile(member, io.BytesIO(row))
    return file.getvalue().decode("latin-1")


SHARD = shard()
BINARY = (TENSORS, SHARD)
"""Seeds that are no text: each character is a byte."""


def mlflow_of(path, points=POINTS):
    """The run of MLflow whose meta.yaml the file is."""
    (path.parent / "metrics").mkdir(exist_ok=True)
    (path.parent / "metrics" / "loss").write_text(points)
    return read_run_directory(path.parent)


def metric_of(path):
    """A run of MLflow whose metric the file is."""
    (path.parent / "metrics").mkdir(exist_ok=True)
    (path.parent / "meta.yaml").write_text(MLFLOW)
    path.replace(path.parent / "metrics" / "loss")
    return read_run_directory(path.parent)


def the_run(path):
    """A project whose plan is the file."""
    (path.parent / "run").mkdir(exist_ok=True)
    path.replace(path.parent / "run" / "plan.json")
    return overview(read_run(path.parent))


def attempts_of(path):
    return rebuilt_attempts(path.parent, run="r", stage="s", kind="sft", fingerprint="f")


def import_of(path):
    about = Import(cloud="aws", file="vms.csv", imported_on=date(2026, 9, 1), as_of="2026-08")
    return read_prices(path.read_text(encoding="utf-8", errors="replace"), about, today=date(2026, 9, 1))


READERS = {
    "charter.yaml": (shipped_bytes("cai-tiny/charter.yaml").decode(), load_project),
    "config.json": (json.dumps(CONFIG), lambda path: read_config(path.parent)),
    "plan.json": (json.dumps(PLAN), the_run),
    "planned_step.json": (json.dumps({"seconds": 1.0, "seconds_by_phase": {"update": 1.0}}),
                          lambda path: read_planned_step(path.parent)),
    "progress.json": (json.dumps(PROGRESS), lambda path: paced(read_progress(path.parent))),
    "timings.json": (json.dumps(TIMINGS), attempts_of),
    "trainer_state.json": (json.dumps(STATE), read_state),
    "calibration.json": (CALIBRATION, fitted.load),
    "trace.json": (json.dumps(TRACE), read_trace),
    "reply.json": (json.dumps(REPLY), lambda path: parse_reply(path.read_bytes(), ASKED)),
    "metrics.jsonl": (METRIC * 3, read_metrics),
    "prompts.jsonl": ('{"prompt": "How long?"}\n' * 3, read_prompts),
    "pairs.jsonl": ('{"prompt": "How?", "chosen": "So.", "rejected": "No."}\n' * 3, read_pairs),
    "provider.jsonl": (LOG * 2, read_provider_log),
    "provider.csv": ("request_id,prompt_tokens,completion_tokens,cost_usd\ncall-1,5,1,0.001\n", read_provider_log),
    "bill.csv": (BILL, read_bill),
    "vms.csv": (PRICES, import_of),
    "prices.csv": (OWN_PRICES,
                   lambda path: read_price_book(path, today=date(2026, 9, 1))),
    "measurements.csv": ("id,source,kind,model,gpu,gpus,metric,value,unit\nA-1,x,sft,m,A100,8,step_time_s,1.5,s\n",
                         read_measurements),
    "constitution.yaml": (CONSTITUTION, load_constitution),
    "rubric.yaml": (RUBRIC, load_rubric),
    "runs.csv": (RUNS, lambda path: read_runs(path.read_text(encoding="utf-8", errors="replace"), path.name)),
    "law.json": (json.dumps(LAW), lambda path: read_law(path.read_bytes(), path.name)),
    "meta.yaml": (MLFLOW, mlflow_of),
    "mlflow.metric": (POINTS, metric_of),
    "rows.jsonl.dvc": (POINTER, pointer_damage),
    "request.json": (json.dumps(REQUEST), lambda path: read_request(path.read_bytes(), is_chat=True, model="m")),
    "shard.tar": (SHARD, lambda path: read_prompts(path, DataSpec(path=path.name, format="webdataset"))),
    "engine.log": (VERL, read_engine_log),
    "model.safetensors": (TENSORS, read_header),
}  # fmt: skip
ABSURD = (
    "1e400",
    "-1e308",
    "NaN",
    "9" * 400,
    "9" * 5000,
    "-1",
    "0",
    "1e15",
    "null",
    "true",
    '"x"',
    "[]",
    "{}",
    "0.1e-400",
)
ODD = (
    "\x00",
    "\ufeff",
    "\ud7ff",
    "\x80",
    "\r",
    '"',
    "'",
    ",,,,",
    "{",
    "[",
    "}",
    ": ",
    "- ",
    "&a *a",
    "!!python/name:x",
    "\u2028",
)


def refusal(read, path):
    """What a reader says against a file; None where it takes it. Anything but an error in words is a defect."""
    try:
        read(path)
    except (CharterError, InvalidReplyError, RequestError) as error:
        return str(error)
    return None


def content(name):
    """The valid file of a reader, as bytes."""
    seed, _ = READERS[name]
    return seed.encode("latin-1" if seed in BINARY else "utf-8")
