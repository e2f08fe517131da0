"""Functions, methods and classes of a package that only tests refer to: the dead-code gate of `tools/house.py`.

A definition lives when a live definition, the code of a module outside definitions, or an entry point refers to it.
Entry points are decorators that register (typer's commands), scripts of pyproject.toml, names in Jinja templates and in
the code of notebooks, tools of the repository, and names that the package itself looks up by text. A definition that
only itself, a dead definition or a test refers to is dead: liveness spreads from the entry points until it stops.
Functions and classes are told apart by module, through imports; methods by name alone, since no type is known here.
"""

import ast
import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

NAME = re.compile(r"[A-Za-z_]\w*")
JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
QUIET_DECORATORS = {
    "dataclass", "property", "classmethod", "staticmethod", "cached_property", "cache", "lru_cache", "contextmanager",
    "asynccontextmanager", "no_grad", "disable", "abstractmethod", "override", "overload", "runtime_checkable",
    "setter", "wraps", "total_ordering", "singledispatch", "middleware",
}  # fmt: skip
"""Decorators that change a definition without calling or registering it; any other one makes an entry point."""
CLOSED_BASES = {
    "Protocol", "Generic", "Exception", "ValueError", "RuntimeError", "Enum", "StrEnum", "IntEnum", "str", "int",
    "float", "dict", "list", "tuple", "NamedTuple", "TypedDict", "ABC", "object",
}  # fmt: skip
"""Bases from outside the package that call no method which a subclass adds; the methods under any other one live."""
LOOKUPS = {"getattr", "hasattr", "attrgetter", "methodcaller", "call"}
"""Functions that are given the name of a method as a text; `call` sends it to another process."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name and its path."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        """Return the source."""
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        """Return the parsed source."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return all nodes of the tree."""
        return list(ast.walk(self.tree))

    @property
    def is_package(self) -> bool:
        """Return True for an `__init__.py`."""
        return self.path.name == "__init__.py"


@dataclass
class References:
    """Names that a piece of code refers to."""

    names: set[tuple[str, str]] = field(default_factory=set)
    """Definitions of modules: (module, name)."""
    attributes: set[str] = field(default_factory=set)
    """Names after a dot, which may be methods."""
    anywhere: set[str] = field(default_factory=set)
    """Names looked up by text: any definition of that name."""
    patterns: set[tuple[str, str]] = field(default_factory=set)
    """Names looked up by a text, perhaps with gaps: (module, regular expression) for `getattr(data, f"read_{kind}")`;
    ("", expression) for methods, where the first argument is no module."""


@dataclass
class Unit:
    """One definition of the package: `owner` is its class where it is a method."""

    module: Module
    name: str
    owner: str
    line: int
    references: References
    is_entry: bool

    @property
    def label(self) -> str:
        """Return the dotted name without the package: `cost.job.Job.total`."""
        return ".".join(part for part in (self.module.name.partition(".")[2], self.owner, self.name) if part)


def read_modules(source: Path) -> list[Module]:
    """Return the modules under a source root (the folder that holds the packages), sorted by path."""
    modules = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules.append(Module(name, path))
    return modules


def imported_from(module: Module, node: ast.ImportFrom) -> str:
    """Return the absolute name of the module in a `from` import."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def bindings_of(module: Module) -> dict[str, tuple[str, str]]:
    """Return what the imported names of a module stand for: (module, name), or (module, "") for a module itself."""
    bindings = {}
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bindings[alias.asname or alias.name] = (imported_from(module, node), alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bindings[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0],
                    "",
                )
    return bindings


class _Names:
    """Resolution of names to definitions of the package, through imports and re-exports."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self.modules = {module.name: module for module in modules}
        self.bindings = {module.name: bindings_of(module) for module in modules}
        self._looking: dict[str, bool] = {}

    def resolve(self, module: str, name: str) -> tuple[str, str]:
        """Return where (module, name) is defined; (module, "") where it is a module."""
        for _ in range(8):  # a chain of re-exports is short; a circle ends here
            if name and f"{module}.{name}" in self.modules:
                return f"{module}.{name}", ""
            target = self.bindings.get(module, {}).get(name) if name else None
            if target is None or target == (module, name):
                return module, name
            module, name = target
        return module, name

    def looks_up_attributes(self, module: Module) -> bool:
        """Return True for a module that reads attributes whose names are values."""
        if module.name not in self._looking:
            self._looking[module.name] = any(
                isinstance(node, ast.Call)
                and called(node) in ("getattr", "attrgetter")
                and not any(isinstance(argument, ast.Constant) for argument in node.args)
                for node in module.nodes
            )
        return self._looking[module.name]


def references_of(nodes: Sequence[ast.AST], module: Module, names: _Names, *, looks_up_text: bool) -> References:
    """Return what some nodes of a module refer to. An import alone is no reference.

    Texts count as names of methods in a module that calls `getattr` with a variable, and in constants of any module,
    which such a call may read.
    """
    references = References()
    looks_up_attributes = names.looks_up_attributes(module)

    def module_of(node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            where, name = names.resolve(module.name, node.id)
            return where if not name and node.id in names.bindings[module.name] else ""
        if isinstance(node, ast.Attribute) and (base := module_of(node.value)):
            where, name = names.resolve(base, node.attr)
            return where if not name else ""
        return ""

    for top in nodes:
        for node in ast.walk(top):
            if isinstance(node, ast.Name):
                references.names.add(names.resolve(module.name, node.id))
            elif isinstance(node, ast.Attribute):
                references.attributes.add(node.attr)
                if base := module_of(node.value):
                    references.names.add(names.resolve(base, node.attr))
                if looks_up_text:
                    references.anywhere.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if node.value.isidentifier() and (looks_up_attributes or isinstance(top, (ast.Assign, ast.AnnAssign))):
                    references.attributes.add(node.value)
                if looks_up_text and all(part.isidentifier() for part in re.split("[.:]", node.value)):
                    references.anywhere.update(re.split("[.:]", node.value))
                elif node.value[:1].isupper() and (quoted := NAME.findall(node.value)) and len(node.value) < 120:
                    # an annotation in quotes; a sentence that opens with a class of this module costs nothing
                    references.names.update(names.resolve(module.name, name) for name in quoted)
            elif isinstance(node, ast.Call) and called(node) in LOOKUPS and node.args:
                base = module_of(node.args[0])
                for text in map(_pattern, node.args):
                    references.patterns.update({(base, text)} if text else ())
            elif isinstance(node, ast.MatchClass):
                references.names.update(
                    names.resolve(module.name, name.id) for name in ast.walk(node.cls) if isinstance(name, ast.Name)
                )
    return references


def _pattern(argument: ast.expr) -> str:
    """Return the regular expression for the names that a text may be; empty for what is no text."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return "|".join(map(re.escape, argument.value.split(".")))
    if isinstance(argument, ast.JoinedStr):
        return "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".*" for p in argument.values)
    return ""


def called(node: ast.Call) -> str:
    """Return the last word of what is called: `get` of `a.b.get(1)`."""
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _without_docstring(node: ast.Module | Definition) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def _registers(node: Definition) -> bool:
    """Return True where a decorator hands the definition to somebody."""
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(target).rpartition(".")[2] not in QUIET_DECORATORS:
            return True
    return False


def _is_special(name: str) -> bool:
    return name.startswith("_") and name.endswith("_")


def _open_classes(modules: Sequence[Module]) -> set[str]:
    """Return the names of classes with an ancestor outside the package that may call their methods."""
    bases: dict[str, set[str]] = {}
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                roots = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
                bases.setdefault(node.name, set()).update(ast.unparse(root).rpartition(".")[2] for root in roots)
            elif isinstance(node, ast.Call) and called(node) == "type" and len(node.args) == 3:
                above = [base.id for base in ast.walk(node.args[1]) if isinstance(base, ast.Name)]
                for name in above[:-1]:  # mixed with a base that is only known when it runs
                    bases.setdefault(name, set()).update(above[above.index(name) + 1 :])
    result = {name for name, above in bases.items() if any(b not in bases and b not in CLOSED_BASES for b in above)}
    while more := {name for name, above in bases.items() if name not in result and above & result}:
        result |= more
    return result


def units_of(modules: Sequence[Module], names: _Names) -> tuple[list[Unit], References]:
    """Return the definitions of a package, and what its modules refer to outside of them."""
    open_classes = _open_classes(modules)
    units: list[Unit] = []
    outside = References()

    for module in modules:
        looks_up_text = "import_module" in module.text or "globals()" in module.text

        def refer(nodes: Sequence[ast.AST], module: Module = module, by_text: bool = looks_up_text) -> References:
            return references_of(nodes, module, names, looks_up_text=by_text)

        def add(node: Definition, owner: str, nodes: Sequence[ast.AST], entry: bool, module: Module = module) -> None:
            units.append(Unit(module, node.name, owner, node.lineno, refer(nodes), entry))

        rest: list[ast.stmt] = []
        for statement in _without_docstring(module.tree):
            if isinstance(statement, ast.ClassDef):
                own: list[ast.AST] = [*statement.decorator_list, *statement.bases, *statement.keywords]
                for member in _without_docstring(statement):
                    if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and not _is_special(member.name):
                        parts = [member.args, *([member.returns] if member.returns else []), *member.decorator_list]
                        entry = statement.name in open_classes or _registers(member)
                        add(member, statement.name, [*parts, *_without_docstring(member)], entry)
                    else:
                        own.append(member)
                add(statement, "", own, _registers(statement))
            elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                parts = [statement.args, *([statement.returns] if statement.returns else []), *statement.decorator_list]
                entry = _registers(statement) or _is_special(statement.name)
                add(statement, "", [*parts, *_without_docstring(statement)], entry)
            elif not (isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"):
                rest.append(statement)
        _merge(outside, refer(rest))
    return units, outside


def _merge(into: References, more: References) -> None:
    into.names |= more.names
    into.attributes |= more.attributes
    into.anywhere |= more.anywhere
    into.patterns |= more.patterns


def _entry_points(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for the scripts that pyproject.toml installs."""
    pyproject = root / "pyproject.toml"
    if pyproject.exists():
        for target in tomllib.loads(pyproject.read_text()).get("project", {}).get("scripts", {}).values():
            module, _, name = target.partition(":")
            yield module, name


def _texts(root: Path) -> Iterator[str]:
    """Yield the code in templates of the package and in notebooks of the docs."""
    for page in (root / "src").rglob("*.html"):
        yield from JINJA.findall(page.read_text())
    for page in (root / "docs").rglob("*.ipynb"):
        for cell in json.loads(page.read_text())["cells"]:
            if cell["cell_type"] == "code":
                yield "".join(cell["source"])


def _tools(root: Path, names: _Names) -> References:
    """Return what the tools of the repository refer to: they write its pages with functions of the package."""
    references = References()
    for path in sorted((root / "tools").glob("*.py")):
        module = Module(path.stem, path)
        names.bindings[module.name] = bindings_of(module)
        _merge(references, references_of(module.tree.body, module, names, looks_up_text=False))
    return references


def unreferenced(
    root: Path, modules: Sequence[Module], public: Collection[str] = (), waiting: Collection[str] = ()
) -> tuple[list[Unit], list[Unit]]:
    """Return the dead definitions of the package under `root`/src in the order of its files, and those that wait.

    `public` names modules whose `__all__` is documented for others, and single definitions that are. What a waiting
    definition refers to lives; one that waits although it is used is not returned.
    """
    names = _Names(modules)
    units, references = units_of(modules, names)
    _merge(references, _tools(root, names))
    references.names.update(_entry_points(root))
    for text in _texts(root):
        references.attributes.update(NAME.findall(text))
    for module in modules:
        if module.name in public:
            references.names.update((module.name, name) for name in _listed(module))
    live = _spread(units, references, [unit for unit in units if unit.label in public])
    idle = [unit for unit in units if unit.label in waiting and id(unit) not in live]
    live |= _spread(units, references, idle)
    dead_classes = {(u.module.name, u.name) for u in units if not u.owner and id(u) not in live}
    return [u for u in units if id(u) not in live and (u.module.name, u.owner) not in dead_classes], idle


def _spread(units: Sequence[Unit], references: References, born: Sequence[Unit]) -> set[int]:
    """Return the definitions that live, once all that `references` and those just born refer to has been followed."""
    live: set[int] = set()
    while True:
        for unit in born:
            live.add(id(unit))
            _merge(references, unit.references)
        born = [unit for unit in units if id(unit) not in live and _lives(unit, references)]
        if not born:
            return live


def _lives(unit: Unit, references: References) -> bool:
    if unit.is_entry or unit.name in references.anywhere:
        return True
    where = "" if unit.owner else unit.module.name
    if any(base == where and re.fullmatch(pattern, unit.name) for base, pattern in references.patterns):
        return True
    if unit.owner:
        return unit.name in references.attributes
    return (where, unit.name) in references.names


def _listed(module: Module) -> list[str]:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def users(units: Sequence[Unit], folders: Mapping[str, Path]) -> dict[str, list[str]]:
    """Return, for each dead definition, the folders whose Python files name it."""
    words = {
        name: {word for path in folder.rglob("*.py") for word in NAME.findall(path.read_text())}
        for name, folder in folders.items()
    }
    return {unit.label: [name for name in folders if unit.name in words[name]] for unit in units}


OUTSIDE = {
    "argv", "arguments", "clock", "now", "sleep", "pause", "seed", "draws", "environ", "environment", "command",
    "commands", "child", "die", "kubectl", "nvml", "device", "devices", "driver", "module", "root", "cpu_info",
    "cgroup", "meminfo", "facts_file", "adjustment", "machine", "node",
}  # fmt: skip
"""Parameters through which the world comes in (CONTRIBUTING, style 3): clock, chance, files and programs of a machine.
A test gives another one; nobody else does. Of waits that a test shortens, the names end in `_seconds`."""
Passed = tuple[Sequence[ast.expr], Sequence[ast.keyword]]


def unpassed(root: Path, modules: Sequence[Module], public: Collection[str] = ()) -> list[str]:
    """Return the parameters, and fields of frozen dataclasses, whose default no call replaces.

    Calls are those of the package, its tools and benchmarks; a field may come by `replace` too. Left out is what
    somebody else may call: commands, `public` modules and definitions, subclasses of classes from outside, functions
    and classes that are looked up by text, handed on as values or read by pydantic. Methods are told apart by name
    alone, so that a call of any method of that name counts.
    """
    names, open_classes = _Names(modules), _open_classes(modules)
    callers = [*modules, *(module for name in ("tools", "benchmarks") for module in read_modules(root / name))]
    names.bindings |= {module.name: bindings_of(module) for module in callers[len(modules) :]}
    calls: dict[tuple[str, str], list[Passed]] = {}
    values: set[tuple[str, str]] = set()
    patterns: set[tuple[str, str]] = set()
    replaced: set[str | None] = set()
    for module in callers:
        not_values = {id(node) for top in module.nodes for part in _not_values(top) for node in ast.walk(part)}
        for node in module.nodes:
            if isinstance(node, ast.Call):
                not_values.add(id(node.func))
                calls.setdefault(_target(names, module, node.func), []).append((node.args, node.keywords))
                if called(node) == "replace":
                    replaced.update(keyword.arg for keyword in node.keywords)
                if called(node) in LOOKUPS and node.args:
                    where, name = _target(names, module, node.args[0])
                    patterns.update(("" if name else where, text) for text in map(_pattern, node.args) if text)
        for node in module.nodes:
            if isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in not_values:
                values.add(_target(names, module, node))
    places = []
    for module in modules:
        if module.name in public or ".cli." in module.name:
            continue
        owners = (node for node in module.nodes if isinstance(node, (ast.Module, ast.ClassDef)))
        for owner, node in ((each, node) for each in owners for node in each.body):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or _registers(node):
                continue
            if node.name.startswith("__") and node.name != "__init__":
                continue
            of_class = owner.name if isinstance(owner, ast.ClassDef) else ""
            builds = node.name == "__init__"
            key = ("", node.name) if of_class and not builds else (module.name, of_class if builds else node.name)
            by_text = any(base == key[0] and re.fullmatch(text, key[1]) for base, text in patterns)
            label = ".".join(part for part in (module.name.partition(".")[2], of_class, node.name) if part)
            if key in values or by_text or of_class in open_classes or label in public:
                continue
            given = [*calls.get(key, ()), *(calls.get(("", "__init__"), ()) if builds else ())]
            places += [
                f"{module.path.relative_to(root)}:{node.lineno} {node.name}({name})"
                for name, position in _optional(node, bool(of_class))
                if name not in OUTSIDE and not name.endswith("_seconds")
                if not any(_gives(call, name, position) for call in given)
            ]
        for node in module.nodes:
            if not isinstance(node, ast.ClassDef) or (module.name, node.name) in values:
                continue
            given = [*calls.get((module.name, node.name), ())]
            given += [
                (inner.args, inner.keywords)
                for inner in ast.walk(node)
                if isinstance(inner, ast.Call) and _is_cls(inner)
            ]
            places += [
                f"{module.path.relative_to(root)}:{line} {node.name}.{name}"
                for name, position, line in _fields(node)
                if name not in OUTSIDE and not name.endswith("_seconds") and name not in replaced
                if not any(_gives(call, name, position) for call in given)
            ]
    return places


def _is_cls(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "cls"


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, int, int]]:
    """Yield the fields of a frozen dataclass with a plain default: name, position and line.

    A default that is made anew for each value is a place to write to, no option.
    """
    decorators = [ast.unparse(each) for each in node.decorator_list]
    members = [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    members = [item for item in members if "ClassVar" not in ast.unparse(item.annotation)]
    if not any(text.startswith("dataclass(") and "frozen=True" in text for text in decorators):
        return
    if "__pydantic_config__" in ast.unparse(node) or node.bases:
        return
    for position, item in enumerate(members):
        if item.value is not None and not (isinstance(item.value, ast.Call) and called(item.value) == "field"):
            yield ast.unparse(item.target), position, item.lineno


def _not_values(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node in which a name stands for a type."""
    parts = [getattr(node, "annotation", None), getattr(node, "returns", None), getattr(node, "type", None)]
    return [part for part in (*parts, *getattr(node, "bases", ())) if isinstance(part, ast.AST)]


def _target(names: _Names, module: Module, node: ast.expr) -> tuple[str, str]:
    """Return what a name or attribute stands for: (module, name) of a definition, ("", name) of a method."""
    if isinstance(node, ast.Name):
        return names.resolve(module.name, node.id)
    if not isinstance(node, ast.Attribute):
        return "", ""
    where, name = _target(names, module, node.value)
    is_module = not name and where in names.modules
    return names.resolve(where, node.attr) if is_module else ("", node.attr)


def _optional(function: ast.FunctionDef | ast.AsyncFunctionDef, in_class: bool) -> Iterator[tuple[str, int | None]]:
    """Yield the parameters with a default, and the position at which a call gives them."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    first = int(in_class and not any(ast.unparse(each) == "staticmethod" for each in function.decorator_list))
    for number in range(len(positional) - len(arguments.defaults), len(positional)):
        yield positional[number].arg, number - first
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg, None


def _gives(call: Passed, name: str, position: int | None) -> bool:
    values, keywords = call
    if any(keyword.arg in (None, name) for keyword in keywords):
        return True
    return position is not None and (len(values) > position or any(isinstance(v, ast.Starred) for v in values))
