"""The export of two stages to MaxText on TPUs; run as a script, it writes the golden files anew.

.venv/bin/python tests/golden/tpu_export.py
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from charter.engines.project import load_project
from charter.report.handover import export_handover

FILES = Path(__file__).parent / "handover_tpu"
PROJECT = """
name: eight-billion-on-tpus
models:
  base: meta-llama/Llama-3.1-8B
data:
  texts: {path: texts.jsonl, rows: 200_000, mean_tokens: 2_000}
  chats: {path: chats.jsonl, rows: 50_000, mean_tokens: 700}
pipeline:
  more: {kind: pretrain, engine: maxtext, init: base, data: texts, steps: 1000, global_batch: 128, seq_len: 4096,
         warmup_steps: 50, resources: {accelerators: TPU-v5p:4, num_nodes: 16}}
  helpful: {kind: sft, engine: maxtext, init: more, data: chats, epochs: 1, global_batch: 128, seq_len: 2048,
            schedule: linear, warmup_steps: 30, resources: {accelerators: TPU-v6e:8, num_nodes: 8}}
resources:
  any_of: [{infra: gcp}]
"""
STAGES = ("more", "helpful")
NOT_GOLDEN = ("plan.json", "README.md")
"""Files of an export that follow prices and estimates."""


def export() -> Mapping[str, str]:
    """Stage and name -> text of what follows only the renderer and the layout."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "charter.yaml").write_text(PROJECT, encoding="utf-8")
        project = load_project(root)
        exports = {stage: export_handover(project, root, stage, "maxtext").files for stage in STAGES}
    return {
        f"{stage}/{name}": text
        for stage, files in exports.items()
        for name, text in files.items()
        if name not in NOT_GOLDEN
    }


def main() -> int:
    """Write every golden file."""
    for name, text in export().items():
        path = FILES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
