"""Record what MaxText's configuration may hold: `tools/engine_schemas/maxtext.py CHECKOUT`.

Its configuration is a flat YAML file over `base.yml`, checked by pydantic classes that import JAX, so that they are
read from a checkout without being imported: names, types, choices and bounds, nothing of their text. Beside them: the
shapes of the models whose weights its own scripts convert both ways, and the sizes of TPU slices that it knows.
Written to `src/charter/engines/maxtext/schema.json` with version, commit and date. CHECKOUT is a work tree, or a git
directory.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).resolve().parents[2] / "src/charter/engines/maxtext/schema.json"
ROOT = "src/maxtext"
TYPES, BASE, VERSION = f"{ROOT}/configs/types.py", f"{ROOT}/configs/base.yml", f"{ROOT}/version.py"
NAMES, CONVERTED = f"{ROOT}/utils/globals.py", f"{ROOT}/checkpoint_conversion/utils/param_mapping.py"
SLICES = f"{ROOT}/utils/accelerator_to_spec_map.py"
BLOCKS = ("llama2", "qwen2", "qwen3", "qwen3_moe", "mixtral")
"""Decoder blocks of the families that Charter renders."""
SHAPE = (
    "decoder_block",
    "base_emb_dim",
    "base_num_decoder_layers",
    "base_num_query_heads",
    "base_num_kv_heads",
    "head_dim",
    "base_mlp_dim",
    "vocab_size",
    "logits_via_embedding",
    "attention_bias",
    "use_qk_norm",
    "rope_max_timescale",
    "num_experts",
    "num_experts_per_tok",
    "base_moe_mlp_dim",
    "norm_topk_prob",
)
CORES = {"v4": 2, "v5p": 2, "tpu7x": 2}
"""Per chip, where a slice's name counts cores."""
PLAIN = ("int", "float", "bool", "str", "None", "list", "dict")
NUMBERS = {"PositiveInt": ("int", 1), "NonNegativeInt": ("int", 0), "NonNegativeFloat": ("float", 0)}


class Checkout:
    """Files of one commit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def git(self, *words: str) -> str:
        """Output of git there."""
        return subprocess.run(["git", "-C", self.path, *words], check=True, capture_output=True, text=True).stdout

    def text(self, path: str) -> str:
        """Text of a file at HEAD."""
        return self.git("show", f"HEAD:{path}")

    def names(self, folder: str) -> list[str]:
        """Files of a folder at HEAD."""
        return self.git("ls-tree", "--name-only", f"HEAD:{folder}").split()


def main(path: Path) -> None:
    """Write the record of a checkout."""
    checkout = Checkout(path)
    commit, date = checkout.git("log", "-1", "--format=%H %cs", "HEAD").split()
    version = re.search(r'__version__ = "([^"]+)"', checkout.text(VERSION))
    assert version is not None
    lines = [
        f'"repository": "AI-Hypercomputer/maxtext", "commit": "{commit}", "date": "{date}", "version": "{version[1]}"',
        block("models", models(checkout)),
        block("slices", slices(checkout)),
        block("keys", keys(checkout)),
    ]
    TARGET.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


def block(name: str, values: dict[str, Any]) -> str:
    """A mapping, a line per entry."""
    return f'"{name}": {{\n' + ",\n".join(f"{json.dumps(key)}: {json.dumps(values[key])}" for key in values) + "\n}"


def keys(checkout: Checkout) -> dict[str, Any]:
    """Every key of the file, with its types, choices and bounds."""
    module = ast.parse(checkout.text(TYPES))
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    enums = {node.name: list(choices(node)) for node in classes if "Enum" in ast.unparse(ast.Tuple(node.bases))}
    names = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    table: dict[str, Any] = {}
    for node in classes:
        for item in node.body if node.name not in enums else ():
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                table[item.target.id] = facts(item, enums, names)
    unknown = set(yaml.safe_load(checkout.text(BASE))) - set(table)
    assert unknown <= {"base_config"}, unknown
    return dict(sorted(table.items()))


def facts(item: ast.AnnAssign, enums: dict[str, list[Any]], names: dict[str, ast.expr]) -> dict[str, Any]:
    """What one key may hold."""
    allowed: dict[str, Any] = {"types": []}
    for kind in alternatives(item.annotation):
        kind = names.get(kind.id, kind) if isinstance(kind, ast.Name) else kind
        word = ast.unparse(kind)
        if word in enums:
            allowed["choices"] = enums[word]
        elif word.startswith("Literal["):
            allowed["choices"] = list(ast.literal_eval(f"({word[8:-1]},)"))
        elif word in NUMBERS:
            plain, least = NUMBERS[word]
            allowed["types"].append(plain)
            allowed["ge"] = least
        else:
            outer = word.split("[")[0]
            allowed["types"].append({"PathStr": "str", "List": "list", "Dict": "dict"}.get(outer, outer))
    if not set(allowed["types"]) <= set(PLAIN):
        allowed["types"] = ["any"]
    if isinstance(item.value, ast.Call):
        allowed |= {
            word.arg: ast.literal_eval(word.value)
            for word in item.value.keywords
            if word.arg in ("ge", "le", "gt", "lt")
        }
    return allowed


def alternatives(node: ast.expr) -> Iterator[ast.expr]:
    """Parts of a union."""
    if isinstance(node, ast.BinOp):
        yield from alternatives(node.left)
        yield from alternatives(node.right)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Optional", "Union"):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            yield from alternatives(part)
        if ast.unparse(node.value) == "Optional":
            yield ast.Constant(None)
    else:
        yield node


def choices(node: ast.ClassDef) -> Iterator[Any]:
    """Values of an enumeration."""
    for item in node.body:
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant):
            yield item.value.value


def models(checkout: Checkout) -> dict[str, Any]:
    """Shapes of the text models that are converted from Hugging Face and back."""
    defaults = yaml.safe_load(checkout.text(BASE))
    names = mapping_keys(checkout.text(NAMES), "HF_IDS") & mapping_keys(checkout.text(CONVERTED), "PARAM_MAPPING")
    table = {}
    for name in sorted(names):
        path = f"{name}.yml"
        if path not in checkout.names(f"{ROOT}/configs/models"):
            continue
        values = defaults | yaml.safe_load(checkout.text(f"{ROOT}/configs/models/{path}"))
        if values["decoder_block"] in BLOCKS and not re.search(r"-(vl|omni)-", name):
            table[name] = {key: values[key] for key in SHAPE}
    return table


def mapping_keys(text: str, name: str) -> set[str]:
    """Keys of a mapping that a module binds."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Dict):
            return {
                key.value for key in node.value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
    raise AssertionError(name)


def slices(checkout: Checkout) -> dict[str, Any]:
    """Chips of the slices of every generation."""
    table: dict[str, list[int]] = {}
    for generation, size in re.findall(
        r'^    "([a-z0-9]+)-(\d+)": SystemCharacteristics\("tpu"', checkout.text(SLICES), re.M
    ):
        table.setdefault(generation, []).append(int(size) // CORES.get(generation, 1))
    return {generation: sorted(set(sizes)) for generation, sizes in sorted(table.items())}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
