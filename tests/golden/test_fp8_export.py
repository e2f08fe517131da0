"""The export in fp8 is the golden one, and differs from that in bf16 by its options and its layout."""

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("fp8_export", Path(__file__).parent / "fp8_export.py")
assert _SPEC is not None
assert _SPEC.loader is not None
fp8_export = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fp8_export)


def test_the_export_in_fp8_is_the_golden_one():
    golden = {path.name: path.read_text(encoding="utf-8") for path in fp8_export.FILES.iterdir()}
    assert "--fp8-format hybrid" in golden["run.sh"]
    assert "| `stage.dtype` | fp8 | `--bf16`, `--fp8-format`, `--fp8-recipe` |" in golden["mapping.md"]
    assert dict(fp8_export.export()) == golden, "regenerate: .venv/bin/python tests/golden/fp8_export.py"
