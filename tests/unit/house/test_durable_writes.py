"""Every write of the product goes through the durable modules; what does not is listed here with the reason."""

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "src" / "charter"
WRITES = re.compile(
    r"\.write_(text|bytes)\(|open\([^)\n]*[\"'][wax]b?\+?[\"']|os\.(replace|rename|link)\(|\.rename\("
    r"|shutil\.(copy\w*|move)\(|torch\.save\(|\bsave_file\(|\.save_pretrained\(|np\.save\w*\(|O_(WRONLY|RDWR)"
)
DURABLE = {"artifacts/durable.py", "artifacts/whole_dir.py"}
FILLS = "fills a directory that publish_dir or begin_dir makes appear whole"
LOG = "a log or a sign of life: nothing is read back from it to compute"
WORK = "in the directory of an engine, which is emptied before every start"
TEMPORARY = "in a directory of its own that is removed afterwards"
ALLOWED = {
    "artifacts/safetensors_file.py": FILLS,
    "physics/fitted.py": "a maintainer's tool writes the bundle that is shipped, under version control",
    "evaluate/run.py": FILLS,
    "feedback/prepare.py": FILLS,
    "feedback/records.py": FILLS,
    "inference/limited.py": "what a function prints goes to the null device",
    "models/adapters.py": FILLS,
    "models/language_model.py": FILLS,
    "models/preference.py": FILLS,
    "report/data_export.py": FILLS,
    "report/export.py": FILLS,
    "report/handover.py": FILLS,
    "train/state.py": FILLS,
    "train/token_data.py": FILLS,
    "artifacts/faults.py": LOG,
    "artifacts/group.py": LOG,
    "artifacts/stage_process.py": LOG,
    "engines/common/reward_file.py": "the text of a file that the engine's processes run, in its directory",
    "engines/openrlhf/adapter.py": WORK,
    "engines/megatron/adapter.py": WORK,
    "engines/megatron/mapping.py": "the text of a script that Charter renders and does not run",
    "engines/skyrl/mapping.py": "the text of a script that Charter renders and does not run",
    "hosted/weights.py": WORK,
    "hosted/data_files.py": FILLS,
    "hosted/engine_process.py": LOG,
    "engines/common/files.py": WORK,
    "hosted/run.py": WORK,
    "inference/generator.py": LOG,
    "launch/children.py": LOG,
    "run/actions.py": LOG,
    "run/followers.py": LOG,
    "metering/sampler.py": LOG,
    "tracking/forward.py": LOG,
    "tracking/trackers.py": "an event file that readers tail; the length that counts is kept beside it",
    "launch/local.py": LOG,
    "launch/servers.py": LOG,
    "launch/subprocess_keeper.py": LOG,
    "launch/scheduler.py": LOG,
    "launch/ray/node_task.py": LOG,
    "launch/stage_server.py": LOG,
    "artifacts/store/maintenance.py": TEMPORARY,
    "data/sandbox.py": TEMPORARY,
    "run/doctor.py": TEMPORARY,
    "models/ranks.py": "where the processes of one start meet; the next start writes another",
    "data/convert.py": "a temporary file that cli/data.py moves durably; it lies below the durable modules",
    "cli/common.py": "the file of a question without a file, in a directory that ends with the command",
    "templates/shipped.py": "a new project's files, copied from the package before anything has run",
}


def writing(text: str) -> list[str]:
    """The lines that write, without comments and texts of messages."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if WRITES.search(line) and not line.startswith(('"', "#"))]


def test_every_write_is_durable_or_listed_with_a_reason():
    found = {str(path.relative_to(SOURCE)): writing(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    stray = {name: lines for name, lines in found.items() if lines and name not in {*DURABLE, *ALLOWED}}
    assert stray == {}, "write through artifacts/durable, whole_dir, batch_files or store, or list it with a reason"


def test_the_list_has_nothing_that_no_longer_writes():
    gone = [name for name in ALLOWED if not (SOURCE / name).exists() or not writing((SOURCE / name).read_text())]
    assert gone == []


@pytest.mark.parametrize(
    ("line", "writes"),
    [
        ("path.write_text(text)", True),
        ('with path.open("wb") as file:', True),
        ("with open(path, 'a', encoding='utf-8') as file:", True),
        ("os.replace(a, b)", True),
        ('with path.open("rb") as file:', False),
        ('"  save_pretrained(..., x) does it"', False),
        ("durable.write_file(path, text)", False),
    ],
)
def test_the_rule_sees_what_it_should(line, writes):
    assert bool(writing(line)) is writes
