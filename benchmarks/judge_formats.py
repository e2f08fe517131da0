"""The judge format that a model of the demo's size learns: agreement with humans on the half it was not taught on.

Pretrains the demo's base model under several seeds, teaches a judge on one half of `preference_train.jsonl`, asks it
about the other half, both ways round, two seeds each. The test file is never read. The last line is one JSON object.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
JUDGES = {
    "yes_no, 3 epochs, 3e-4": ("yes_no", 3.0, 3e-4, 32),
    "yes_no_mean, 2 epochs, 3e-4": ("yes_no_mean", 2.0, 3e-4, 16),
    "yes_no_mean, 3 epochs, 8e-4": ("yes_no_mean", 3.0, 8e-4, 16),
}
"""Format, epochs, learning rate, pairs per step; the last is the demo's."""


def pretrained(directory: Path, seed: int, steps: int) -> Path:
    """The demo's pretrained model under another seed."""
    charter = [str(PYTHON), "-m", "charter.cli.main"]
    subprocess.run([*charter, "init", "--template", "cai-tiny", str(directory)], check=True, stdout=sys.stderr)
    overrides = ["--set", f"seed={seed}", "--set", f"pipeline.pretrain.steps={steps}"]
    run = [*charter, "run", "-C", str(directory), "--yes", "--only", "pretrain", *overrides]
    subprocess.run(run, check=True, stdout=sys.stderr)
    return next((directory / "run" / "stages").glob("pretrain-*")) / "outputs" / "model"


def agreement(model: Path, judge: tuple[str, float, float, int], halves: tuple, seed: int, constitution) -> float:
    """Share of pairs of the second half on which a judge taught on the first agrees with the human label."""
    import torch

    from charter.feedback.comparing import Comparison, Rules, comparing
    from charter.feedback.local_models import LocalModels
    from charter.feedback.records import answered
    from charter.models.language_model import load_language_model
    from charter.spec.stage import JudgeStage
    from charter.train.judge import judge_loss
    from charter.train.optimizers import make_optimizer, set_learning_rate
    from charter.train.schedule import batch_rows, learning_rate_factor, total_steps

    form, epochs, rate, batch = judge
    taught, tested = halves
    spec = JudgeStage(
        init="m", pairs=("p",), format=form, learning_rate=rate, epochs=epochs, global_batch=batch, seq_len=192,
        warmup_steps=3, weight_decay=0.1,
    )  # fmt: skip
    language_model = load_language_model(model)
    optimizer = make_optimizer([(list(language_model.model.parameters()), rate)], spec)
    steps = total_steps(epochs=epochs, steps=None, rows=len(taught), global_batch=batch)
    for step in range(steps):
        set_learning_rate(optimizer, learning_rate_factor(step, steps, spec))
        rows = batch_rows(step, rows=len(taught), batch=batch, seed=seed)
        language_model.model.train()
        result = judge_loss(
            language_model, [(taught[i], constitution.draw(seed, taught[i].id, step)) for i in rows], spec
        )
        (result.loss_sum / result.terms).backward()
        torch.nn.utils.clip_grad_norm_(language_model.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    items = [
        Comparison(
            id=p.id, turns=p.prompt, first=p.chosen, second=p.rejected, principles=(constitution.draw(99, p.id),)
        )
        for p in tested
    ]
    language_model.tokenizer.model_max_length = spec.seq_len
    rules = Rules(seed=99, stage="label", format=form)
    verdicts = answered(comparing(items, rules), LocalModels({"judge": language_model}))
    return sum(verdict.probability_first > 0.5 for verdict in verdicts) / len(verdicts)


def main() -> None:
    """Pretrain, teach, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=3, help="pretrained models, seeds from 101 on")
    parser.add_argument("--steps", type=int, default=1200, help="steps of pretraining")
    parser.add_argument("--limit", type=int, default=None, help="pairs of each half; all by default")
    arguments = parser.parse_args()
    if not PYTHON.exists():
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-run"], check=True, stdout=sys.stderr)
    if Path(sys.executable).resolve() != PYTHON.resolve() or sys.prefix == sys.base_prefix:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    import torch

    from charter.data.dataset import read_pairs
    from charter.feedback.constitution import load_constitution
    from charter.spec.project import DataSpec

    torch.set_num_threads(1)
    by_judge: dict[str, list[float]] = {name: [] for name in JUDGES}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(arguments.models):
            project = Path(directory) / str(number)
            model = pretrained(project, 101 + number, arguments.steps)
            constitution = load_constitution(project / "constitution.yaml")
            one, two = (
                read_pairs(project / "preference_train.jsonl", DataSpec(path="", part=part))[: arguments.limit]
                for part in ("1/2", "2/2")
            )
            for name, judge in JUDGES.items():
                for seed in (1, 2):
                    for halves in ((one, two), (two, one)):
                        by_judge[name].append(agreement(model, judge, halves, seed, constitution))
                print(name, [round(value, 3) for value in by_judge[name]], file=sys.stderr)
    figures = {
        name: {"mean": round(statistics.mean(v), 4), "least": round(min(v), 4), "most": round(max(v), 4)}
        for name, v in by_judge.items()
    }
    machine = {"cpus": os.cpu_count(), "architecture": platform.machine(), "torch": torch.__version__}
    print(json.dumps({"agreement": figures, "command": " ".join(sys.argv), "machine": machine}))


if __name__ == "__main__":
    main()
