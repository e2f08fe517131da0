"""Exports to MaxText on TPU slices are the golden ones."""

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("tpu_export", Path(__file__).parent / "tpu_export.py")
assert _SPEC is not None
assert _SPEC.loader is not None
tpu_export = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tpu_export)


def test_exports_to_tpus_are_the_golden_ones():
    paths = [path for path in tpu_export.FILES.rglob("*") if path.is_file()]
    golden = {str(path.relative_to(tpu_export.FILES)): path.read_text(encoding="utf-8") for path in paths}
    assert golden["helpful/resources.yaml"].count("tpu-v6e-64:1") == 1
    assert dict(tpu_export.export()) == golden, "regenerate: .venv/bin/python tests/golden/tpu_export.py"
