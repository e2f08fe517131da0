"""Record what prime-rl's configuration may hold: `tools/engine_schemas/prime_rl.py CHECKOUT PYTHON`.

Its configuration package is in its repository and not on PyPI. The package of the checkout's commit is asked for the
JSON schema of `RLConfig` by PYTHON, an interpreter (3.11 or later) that has verifiers, renderers, prime-pydantic-config
and tomli; names, types, ranges and defaults are kept, nothing of its text. An environment is narrowed to the one that
Charter writes: a single agent with a taskset. Written to `src/charter/engines/prime_rl/schema.json`, a definition a
line, with version, commit and date; tests check every rendered file against it. CHECKOUT is a work tree, or a git
directory.
"""

import io
import json
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[2] / "src/charter/engines/prime_rl/schema.json"
PACKAGE = "packages/prime-rl-configs"
BESIDE = ("verifiers", "renderers", "prime-pydantic-config", "pydantic")
"""Packages whose classes are part of the schema."""
ASK = f"""
import json
from importlib.metadata import version
from prime_rl.configs.rl import RLConfig
from verifiers.v1 import SingleAgentEnvConfig
print(json.dumps({{
    "schema": RLConfig.model_json_schema(),
    "env": SingleAgentEnvConfig.model_json_schema(),
    "beside": {{name: version(name) for name in {BESIDE!r}}},
}}))
"""
TEXTS = ("description", "title")


def main(checkout: Path, python: str) -> None:
    """Write the schema of a checkout."""
    with tempfile.TemporaryDirectory() as directory:
        packed = git(checkout, "archive", "HEAD", f"{PACKAGE}/src")
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(directory, filter="data")
        answer = json.loads(
            subprocess.run(
                [python, "-c", ASK],
                env={"PYTHONPATH": f"{directory}/{PACKAGE}/src"},
                capture_output=True,
                check=True,
            ).stdout
        )
    schema = plain(answer["schema"])
    env = plain(answer["env"])
    named, of_env = schema.pop("$defs"), env.pop("$defs")
    assert all(named[name] == of_env[name] for name in named.keys() & of_env), "one name of two classes"
    definitions = {**named, **of_env, "SingleAgentEnvConfig": env}
    definitions["TrainSourceConfig"]["properties"]["env"] = {"$ref": "#/$defs/SingleAgentEnvConfig"}
    document = {
        "version": tomllib.loads(git(checkout, "show", "HEAD:pyproject.toml").decode())["project"]["version"],
        "commit": git(checkout, "rev-parse", "HEAD").decode().strip(),
        "date": git(checkout, "log", "-1", "--format=%cs").decode().strip(),
        "beside": answer["beside"],
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }
    TARGET.write_text(by_line(document), encoding="utf-8")


def plain(value: Any) -> Any:
    """The same without texts; a property may be called as a text is."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: {field: plain(inner) for field, inner in item.items()} if name == "properties" else plain(item)
        for name, item in value.items()
        if name not in TEXTS
    }


def by_line(document: dict[str, Any]) -> str:
    """JSON with one definition, and one other entry, a line."""
    lines = [f' "{name}": {json.dumps(value)}' for name, value in document.items() if name != "$defs"]
    definitions = [f'  "{name}": {json.dumps(value)}' for name, value in document["$defs"].items()]
    return "{\n" + ",\n".join([*lines, ' "$defs": {\n' + ",\n".join(definitions) + "\n }"]) + "\n}\n"


def git(checkout: Path, *arguments: str) -> bytes:
    """Return the output of a git command."""
    return subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, check=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
