"""Inputs of stages from outside the pipeline, and their fingerprints.

Data by content, models by files or architecture.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fingerprint import canonical, fingerprint, sha256_file
from charter.artifacts.job import JobInput
from charter.data.formats import DatasetFiles, find_files, is_there
from charter.errors import DataError, Problem
from charter.run.paths import constitution_path
from charter.spec.project import DataSpec, ModelSpec, Project, Serving


class FileHashes:
    """A cache on disk; losing it costs time only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, list[str | int]] = {}
        self._changed = False
        if path is not None and path.exists():
            try:
                content = durable.read_json(path)
            except DataError:
                content = {}
            self._known = content if isinstance(content, dict) else {}

    def sha256(self, path: Path) -> str:
        """The SHA-256 of a file's content."""
        status = path.stat()
        stamp: list[str | int] = [status.st_size, status.st_mtime_ns, status.st_ino]
        cached = self._known.get(str(path))
        if cached is not None and cached[:3] == stamp:
            return str(cached[3])
        digest = sha256_file(path)
        self._known[str(path)] = [*stamp, digest]
        self._changed = True
        return digest

    def save(self) -> None:
        """Write the cache if it has grown."""
        if self._changed and self._path is not None and self._path.parent.is_dir():
            durable.write_hint(self._path, self._known)
            self._changed = False


MISSING = "missing"
"""Fingerprint of what cannot be read; a stage with such an input does not start."""
_MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_NOT_IDENTITY = {"path", "rows", "mean_tokens", "format"}
"""Fields of a data set that say where it is, or what the planner assumes of it; the format counts as it was found."""


REVISIONS_FILE = "models.json"


def read_revisions(run_dir: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the accepted revisions of served models: name -> {number, revision, accepted_at, by}."""
    path = run_dir / REVISIONS_FILE
    content = durable.read_json(path) if path.exists() else {}
    if not isinstance(content, dict) or not all(isinstance(item, dict) for item in content.values()):
        raise DataError(f"{path} does not hold revisions by model; move it away to run as if none was accepted")
    return content


def revision_number(serving: Serving, accepted: Mapping[str, Any] | None) -> int:
    """Return how many models an endpoint has had under the revision that the file names: 1 unless more were accepted.

    >>> revision_number(Serving(revision="b"), {"revision": "a", "number": 3})
    1
    """
    return int(accepted["number"]) if accepted and accepted.get("revision") == serving.revision else 1


class Inputs:
    """Resolves models, data sets and the constitution of a project; collects what is wrong in `problems`."""

    def __init__(
        self,
        project: Project,
        root: Path,
        hashes: FileHashes,
        revisions: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self._project = project
        self._root = root
        self._hashes = hashes
        self._revisions = revisions
        self._fingerprints: dict[str, str] = {}
        self.problems: dict[str, list[Problem]] = {}
        """By the name of the model or data set, so that only what a stage needs stops it."""

    def data(self, name: str, role: str) -> JobInput:
        """A data set as an input."""
        spec = self._project.data[name]
        digest = self._once(name, lambda: self._data_fingerprint(name, spec))
        return JobInput(
            name=name, role=role, source="data", path=str(self._path(spec.path)), fingerprint=digest, data=spec
        )

    def model(self, name: str, role: str) -> JobInput:
        """A model as an input; an inline architecture has no path, nor has one that is only served."""
        spec = self._project.models[name]
        digest = self.revised(name, self._once(name, lambda: self._model_fingerprint(name, spec)))
        has_path = spec.model is not None and not self._is_only_served(name, spec)
        path = str(_model_directory(self._path(str(spec.model)))) if has_path else None
        return JobInput(name=name, role=role, source="model", path=path, fingerprint=digest, model=spec)

    def revised(self, name: str, digest: str) -> str:
        """Return the fingerprint of a model or stage with the revision of the endpoint that answers for it."""
        serving = self._project.serving.get(name)
        if serving is None or serving.endpoint is None or not serving.is_used:
            return digest
        number = revision_number(serving, self._revisions.get(name))
        if serving.revision is None and number == 1:
            return digest
        payload = {"schema": "charter.revision/1", "of": digest, "revision": serving.revision, "number": number}
        return fingerprint(payload)

    def files(self, written: str, role: str) -> JobInput:
        """A file or directory that is neither data nor a model as an input, by the names and content of its files."""
        path = self._path(written)
        digest = self._once(f"{role} {written}", lambda: self._files_fingerprint(f"{role} {written}", path))
        return JobInput(name=f"{role} {written}", role=role, source="data", path=str(path), fingerprint=digest)

    def constitution(self) -> tuple[str | None, str | None]:
        """Path and fingerprint of the constitution.

        Of its content, so that a comment in it changes nothing.
        """
        path = constitution_path(self._project, self._root)
        if path is None:
            return None, None
        return str(path), self._once("constitution", lambda: self._constitution_fingerprint(path))

    def _once(self, name: str, compute: Any) -> str:
        if name not in self._fingerprints:
            self._fingerprints[name] = compute()
        return self._fingerprints[name]

    def _path(self, written: str) -> Path:
        return (self._root / Path(written).expanduser()).resolve()

    def _problem(self, name: str, message: str, *, path: str, hint: str) -> str:
        self.problems.setdefault(name, []).append(Problem(message=message, path=path, hint=hint))
        return MISSING

    def _data_fingerprint(self, name: str, spec: DataSpec) -> str:
        path = self._path(spec.path)
        try:
            if not is_there(path):
                hint = f"put the file there, or correct the path; paths are relative to {self._root}"
                return self._problem(name, f"no file {path}", path=f"data.{name}.path", hint=hint)
            files = find_files(path, spec.format)
        except DataError as error:
            return self._problem(name, str(error), path=f"data.{name}.path", hint="")
        how = {key: value for key, value in canonical(spec).items() if key not in _NOT_IDENTITY}
        return fingerprint({"schema": "charter.data/1", "how": how, **self._content(files)})

    def _files_fingerprint(self, name: str, path: Path) -> str:
        if not path.exists():
            hint = f"paths are relative to {self._root}"
            return self._problem(name, f"no file or directory {path}", path=name.replace(" ", ": "), hint=hint)
        files = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
        sources = [item for item in files if "__pycache__" not in item.parts]
        content = {item.relative_to(path.parent).as_posix(): self._hashes.sha256(item) for item in sources}
        return fingerprint({"schema": "charter.files/1", "files": content})

    def _content(self, files: DatasetFiles) -> dict[str, Any]:
        """Return the content of a data set: the hash of its one file, or names and hashes in reading order; the format.

        Of one JSONL file the hash is all, as it was before there were other formats.
        """
        hashes = [self._hashes.sha256(path) for path in files.files]
        if not files.single:
            return {"format": files.format, "files": [list(pair) for pair in zip(files.names, hashes, strict=True)]}
        return {"sha256": hashes[0]} | ({} if files.format == "jsonl" else {"format": files.format})

    def _model_fingerprint(self, name: str, spec: ModelSpec) -> str:
        payload: dict[str, Any] = {"schema": "charter.model/1", "precision": spec.precision}
        if spec.reward_model:
            payload["reward_model"] = True
        if spec.architecture is not None:
            payload["architecture"] = canonical(spec.architecture)
        if spec.tokenizer is not None:
            sources = [self.data(data, "tokenizer").fingerprint for data in spec.tokenizer.train_on]
            payload["tokenizer"] = {"vocab_size": spec.tokenizer.vocab_size, "train_on": sources}
        if self._is_only_served(name, spec):
            payload["served"] = self._project.serving[name].model or spec.model
        elif spec.model is not None:
            directory = _model_directory(self._path(spec.model))
            if (problem := _model_problem(spec.model, directory)) is not None:
                return self._problem(name, problem[0], path=f"models.{name}.model", hint=problem[1])
            payload["files"] = {path.name: self._hashes.sha256(path) for path in _model_files(directory)}
        return fingerprint(payload)

    def _is_only_served(self, name: str, spec: ModelSpec) -> bool:
        """Return True if an endpoint answers for a model whose weights are not on this machine."""
        serving = self._project.serving.get(name)
        if spec.model is None or serving is None or not serving.is_used:
            return False
        return not _model_directory(self._path(spec.model)).is_dir()

    def _constitution_fingerprint(self, path: Path) -> str:
        from charter.feedback.constitution import load_constitution

        try:
            return fingerprint({"schema": "charter.constitution-content/1", "content": load_constitution(path)})
        except DataError as error:
            return self._problem("constitution", str(error), path="constitution", hint="")

    def problems_of(self, names: Sequence[str]) -> list[Problem]:
        """The problems of these models and data sets (and of `constitution`)."""
        return [problem for name in dict.fromkeys(names) for problem in self.problems.get(name, ())]


def _model_directory(path: Path) -> Path:
    return path.parent if path.name == "config.json" else path


def _model_files(directory: Path) -> list[Path]:
    return sorted({path for pattern in _MODEL_FILES for path in directory.glob(pattern) if path.is_file()})


def _model_problem(written: str, directory: Path) -> tuple[str, str] | None:
    """Return the obstacle to loading a model, and its remedy."""
    if not directory.is_dir():
        from charter.artifacts.hub import ID

        return (
            f"no directory {directory}, so {written!r} has no weights on this machine",
            "a catalog name can be planned; to run it, give the path of a Hugging Face directory"
            f"{f' (`charter artifacts fetch {written}` gets one)' if ID.fullmatch(written) else ''}, "
            "or an inline architecture with a tokenizer",
        )
    if not (directory / "config.json").is_file():
        return f"{directory} has no config.json", "give a directory as Hugging Face's save_pretrained writes it"
    if not list(directory.glob("*.safetensors")):
        return f"{directory} has no *.safetensors file", "only safetensors weights are read, never pickled ones"
    return None
