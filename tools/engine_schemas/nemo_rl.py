"""Record what NeMo RL's configuration may hold: `tools/engine_schemas/nemo_rl.py CHECKOUT`.

Its package on PyPI is empty, so its `MasterConfig` classes are read from a checkout without importing them: names,
types and whether a key is required, nothing of their text. Written to `src/charter/engines/nemo_rl/schema.json` with
version and commit; tests check every rendered file against it. CHECKOUT is a work tree, or a git directory.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import yaml

TARGET = Path(__file__).resolve().parents[2] / "src/charter/engines/nemo_rl/schema.json"
ROOTS = {
    "sft": "nemo_rl/algorithms/sft.py",
    "rm": "nemo_rl/algorithms/rm.py",
    "dpo": "nemo_rl/algorithms/dpo.py",
    "grpo": "nemo_rl/algorithms/grpo.py",
}
"""Each has a class `MasterConfig` of its own."""
EXAMPLES = {
    "sft": "examples/configs/sft.yaml",
    "rm": "examples/configs/rm.yaml",
    "dpo": "examples/configs/dpo.yaml",
    "grpo": "examples/configs/grpo_math_1B.yaml",
}
"""Their keys that the classes do not have (the code reads them all the same) are recorded beside the classes."""
BESIDE = {"vllm": "nemo_rl/models/generation/vllm/config.py"}
"""Read in place of a base class where a key says so: the generation of GRPO is vLLM's here."""
READ_BY_THE_CODE = ("policy.dtensor_cfg.automodel_kwargs.attn_implementation",)
"""nemo_rl/models/automodel/setup.py takes it out of the mapping before it reads the rest."""
INFO = "nemo_rl/package_info.py"
MAPPINGS, CONFIGURATION = ("TypedDict",), ("BaseModel",)
Types = dict[str, dict[str, object]]


def main(checkout: Path) -> None:
    """Write the schema of a checkout."""
    types: Types = {}
    roots = {name: read(checkout, path, "MasterConfig", types) for name, path in ROOTS.items()}
    generation = read(checkout, BESIDE["vllm"], "VllmConfig", types)
    schema = {
        "version": version(checkout),
        "commit": git(checkout, "rev-parse", "HEAD").strip(),
        "roots": roots,
        "instead": {"GenerationConfig": generation},
        "beside": {name: beside(checkout, path, types, roots[name]) for name, path in EXAMPLES.items()},
        "types": dict(sorted(types.items())),
    }
    TARGET.write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read(checkout: Path, path: str, name: str, types: Types) -> str:
    """Record a class and all that its fields name; the key that it is recorded under."""
    key = f"{path.removesuffix('.py').replace('/', '.')}.{name}"
    if key in types:
        return key
    tree = ast.parse(git(checkout, "show", f"HEAD:{path}"))
    definition = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    total = not any(item.arg == "total" and ast.unparse(item.value) == "False" for item in definition.keywords)
    fields: dict[str, object] = {}
    types[key] = {"fields": fields}
    names = module_names(checkout, path, tree)
    is_model = False
    for base in (ast.unparse(item) for item in definition.bases):
        if base in names:
            parent = read(checkout, *names[base], types)
            fields.update(types[parent]["fields"])  # type: ignore[call-overload]
            is_model = is_model or bool(types[parent].get("model"))
        is_model = is_model or base in CONFIGURATION
    types[key]["model"] = is_model
    for node in definition.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        text = ast.unparse(node.annotation)
        optional = text.startswith("NotRequired[") or not total or (is_model and node.value is not None)
        fields[node.target.id] = {
            "type": described(node.annotation, names, checkout, types),
            "required": not optional,
        }
    return key


def described(
    node: ast.expr,
    names: dict[str, tuple[str, str]],
    checkout: Path,
    types: Types,
) -> object:
    """A type as plain JSON: a name, `{"any": [...]}`, `{"literal": [...]}`, `{"list": ...}`, `{"class": ...}`."""

    def inner(item: ast.expr) -> object:
        return described(item, names, checkout, types)

    if isinstance(node, ast.BinOp):
        return {"any": [inner(node.left), inner(node.right)]}
    if isinstance(node, ast.Subscript):
        outer = ast.unparse(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer in ("NotRequired", "Annotated"):
            return inner(parts[0])
        if outer == "Optional":
            return {"any": [inner(parts[0]), "None"]}
        if outer == "Union":
            return {"any": [inner(part) for part in parts]}
        if outer == "Literal":
            return {"literal": [ast.literal_eval(part) for part in parts]}
        return {"list": inner(parts[0])} if outer in ("list", "List") else outer
    text = ast.unparse(node)
    if text in names and (where := definition(checkout, *names[text])) is not None:
        return {"class": read(checkout, *where, types)}
    return text


def definition(checkout: Path, path: str, name: str) -> tuple[str, str] | None:
    """Where a class is defined, through the modules that pass it on; None where it is no class of the checkout."""
    try:
        tree = ast.parse(git(checkout, "show", f"HEAD:{path}"))
    except subprocess.CalledProcessError:
        return None
    if any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        return path, name
    names = module_names(checkout, path, tree)
    return definition(checkout, *names[name]) if name in names and names[name] != (path, name) else None


def module_names(checkout: Path, path: str, tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Names that a module defines or takes from NeMo RL -> file and name."""
    names = {node.name: (path, node.name) for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nemo_rl"):
            base = node.module.replace(".", "/")
            file = f"{base}.py" if exists(checkout, f"{base}.py") else f"{base}/__init__.py"
            names.update({alias.asname or alias.name: (file, alias.name) for alias in node.names})
    return names


def beside(checkout: Path, path: str, types: Types, root: str) -> list[str]:
    """Keys of an example, two levels deep, that no class has: `policy.offload_optimizer_for_logprob`."""
    sections: dict[str, dict[str, object]] = yaml.safe_load(git(checkout, "show", f"HEAD:{path}"))
    keys = []
    for section, values in sections.items():
        kind = types[root]["fields"].get(section, {}).get("type")  # type: ignore[attr-defined]
        if isinstance(kind, dict) and "class" in kind and isinstance(values, dict):
            fields = types[kind["class"]]["fields"]
            assert isinstance(fields, dict)
            keys += [f"{section}.{key}" for key in values if key not in fields]
    return sorted([*keys, *READ_BY_THE_CODE])


def exists(checkout: Path, path: str) -> bool:
    """Whether the commit has that file."""
    return bool(git(checkout, "ls-tree", "--name-only", "HEAD", path).strip())


def version(checkout: Path) -> str:
    """The release that the checkout says it is."""
    tree = ast.parse(git(checkout, "show", f"HEAD:{INFO}"))
    values = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return ".".join(str(values[name]) for name in ("MAJOR", "MINOR", "PATCH"))


def git(checkout: Path, *arguments: str) -> str:
    """What a git command prints."""
    return subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
