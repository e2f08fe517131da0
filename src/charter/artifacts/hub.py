"""Models and data sets of a Hugging Face Hub, fetched at one commit and checked against its hashes.

Only files that are read as data are taken: configuration, tokenizer and safetensors of a model, rows of a data set. No
code of the repository is fetched or run. The token goes to the Hub alone, not where it sends a download on to.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from charter.artifacts import durable
from charter.artifacts.fingerprint import FileFact, require_free, sha256_file
from charter.artifacts.whole_dir import below, wrong_name
from charter.errors import DataError, UsageError, loads_json

HUB = "https://huggingface.co"
PIN_FILE = "charter.hub"
"""Beside what was fetched: from which repository and commit, and the hash of every file. No `.json`: it is no part of a
model, whose fingerprint covers those."""
SCHEMA = "charter.hub/1"
ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
COMMIT = re.compile(r"[0-9a-f]{40}")
TAKEN: Mapping[str, tuple[str, ...]] = {
    "models": ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "LICENSE*"),
    "datasets": ("*.jsonl", "*.parquet", "LICENSE*"),
}
"""Names of the files that are taken; of a model only those at the top, where its weights for Transformers lie."""
WAIT_SECONDS = 60.0
"""For an answer to begin, and for each part of it."""
LARGEST_TEXT = 64 << 20
"""Bytes of a file without a SHA-256 (a vocabulary, a configuration), and of the list of files: held in memory."""
_BLOCK_BYTES = 1 << 20
Kind = Literal["models", "datasets"]


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """One file of a repository at a commit."""

    name: str
    size_bytes: int
    sha256: str
    """Empty where the Hub names the file by git's hash alone."""
    blob: str
    """SHA-1 of git's blob; empty where the file is stored apart."""


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """Repository at one commit: the files that would be taken."""

    kind: Kind
    repository: str
    revision: str
    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


class _Redirects(HTTPRedirectHandler):
    """Follows a download to where it is stored, without the token and never from https to http."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the request for the new place, if it may be followed."""
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if new is not None and before.netloc != after.netloc:
            new.headers.pop("Authorization", None)
        if before.scheme == "https" and after.scheme != "https":
            raise URLError(f"it leads from https to {after.scheme}")
        return new


class Hub:
    """A Hub at an address (`HF_ENDPOINT`), asked with a token (`HF_TOKEN`) where there is one."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.address = (env.get("HF_ENDPOINT") or HUB).rstrip("/")
        self._token = env.get("HF_TOKEN", "")
        parts = urlsplit(self.address)
        is_here = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise UsageError(f"HF_ENDPOINT: {self.address!r} is no https address")
        if self._token and parts.scheme == "http" and not is_here:
            raise UsageError(f"HF_ENDPOINT: {self.address} is not encrypted, and HF_TOKEN would go to it")
        self._opener = build_opener(_Redirects)

    def pin(self, kind: Kind, repository: str, revision: str, *, only: str = "") -> Pinned:
        """Return the commit that a revision (a branch, a tag, a commit) is now, and its files that are taken.

        `only` is a pattern that their names match, `train/*.parquet`.
        """
        if not ID.fullmatch(repository):
            raise UsageError(f"{repository!r} is no id of a Hub; give OWNER/NAME")
        path = f"/api/{kind}/{repository}/revision/{quote(revision, safe='')}?blobs=true"
        what = f"{repository} at {revision}"
        try:
            answer = loads_json(self._small(path, what, limit=LARGEST_TEXT))
            commit, siblings = str(answer["sha"]), list(answer["siblings"])
            files = tuple(_file_of(item) for item in siblings)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{self.address} did not answer about {what} as a Hub does") from None
        if not COMMIT.fullmatch(commit):
            raise DataError(f"{self.address} names no commit for {what}")
        taken = tuple(file for file in files if _is_taken(kind, file.name, only))
        if kind == "models" and not any(file.name.endswith(".safetensors") for file in taken):
            raise DataError(f"{what} has no *.safetensors at its top; only such weights are read, never pickled ones")
        if not taken:
            raise DataError(f"{what} has no file that is read here: {', '.join(TAKEN[kind][:-1])}")
        for file in taken:
            if (wrong := wrong_name(file.name)) is not None:
                raise DataError(f"{what} names a file {file.name[:80]!r}, which is refused: {wrong}")
        return Pinned(kind=kind, repository=repository, revision=commit, files=taken)

    def fetch(self, pinned: Pinned, target: Path) -> bool:
        """Put the files into a directory, all of them or none; False where they are there already.

        What a fetch that was cut off has left is checked and taken up again.
        """
        pin = {
            "schema": SCHEMA, "kind": pinned.kind, "repository": pinned.repository, "revision": pinned.revision,
            "endpoint": self.address,
        }  # fmt: skip
        if target.exists():
            there = durable.read_json(target / PIN_FILE) if (target / PIN_FILE).is_file() else {}
            if all(there.get(name) == value for name, value in pin.items()):
                return False
            raise UsageError(f"{target} exists; it holds {there.get('repository', 'something else')}; give --output")
        part = target.with_name(f".fetch-{target.name}-{pinned.revision[:12]}")
        require_free(part, pinned.size_bytes)
        hashes = {}
        for file in sorted(pinned.files, key=lambda file: (file.name != "config.json", file.name)):
            hashes[file.name] = self._take(pinned, file, part)
        durable.write_json(part / PIN_FILE, {**pin, "files": hashes})
        durable.move(part, target)
        return True

    def _take(self, pinned: Pinned, file: HubFile, part: Path) -> str:
        """Return the SHA-256 of a file that lies in `part` then."""
        place, what = below(part, file.name), f"{file.name} of {pinned.repository}"
        durable.make_dir(place.parent)
        folder = "" if pinned.kind == "models" else "datasets/"
        path = f"/{folder}{pinned.repository}/resolve/{pinned.revision}/{quote(file.name)}"
        if file.sha256:
            if not place.is_file() or place.stat().st_size != file.size_bytes or sha256_file(place) != file.sha256:
                expected = FileFact(bytes=file.size_bytes, sha256=file.sha256)
                durable.write_chunks(place, self._chunks(path, what), expected)
            return file.sha256
        content = place.read_bytes() if place.is_file() else b""
        if not _is_blob(content, file):
            content = self._small(path, what, limit=LARGEST_TEXT)
            if not _is_blob(content, file):
                raise DataError(f"{what} is not what the Hub says it is: its size or git's hash differs")
            if file.name == "config.json" and pinned.kind == "models":
                _refuse_code(content, pinned.repository)
            durable.write_file(place, content)
        return hashlib.sha256(content).hexdigest()

    def _open(self, path: str, what: str) -> Any:
        headers = {"User-Agent": "charter", "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            return self._opener.open(Request(self.address + path, headers=headers), timeout=WAIT_SECONDS)
        except HTTPError as error:
            reasons = {401: "it needs a token (HF_TOKEN)", 403: "its owner has not let you in", 404: "there is none"}
            raise UsageError(f"{what}: {reasons.get(error.code, f'{self.address} answered {error.code}')}") from None
        except (URLError, OSError, ValueError) as error:
            raise UsageError(f"{self.address} cannot be reached: {getattr(error, 'reason', error)}") from None

    def _small(self, path: str, what: str, *, limit: int) -> bytes:
        content = b"".join(self._chunks(path, what, limit=limit))
        if len(content) > limit:
            raise DataError(f"{what} is longer than {limit >> 20} MiB, and has no SHA-256 to check it by")
        return content

    def _chunks(self, path: str, what: str, *, limit: int | None = None) -> Iterator[bytes]:
        with self._open(path, what) as answer:
            read = 0
            while limit is None or read <= limit:
                try:
                    block = answer.read(_BLOCK_BYTES)
                except (OSError, ValueError) as error:
                    raise UsageError(f"{what} was cut off after {read:,} bytes: {error}; fetch it again") from None
                if not block:
                    return
                read += len(block)
                yield block


def _file_of(item: Mapping[str, Any]) -> HubFile:
    apart = item.get("lfs") or {}
    return HubFile(
        name=str(item["rfilename"]),
        size_bytes=int(apart.get("size") or item.get("size") or 0),
        sha256=str(apart.get("sha256") or ""),
        blob="" if apart else str(item.get("blobId") or ""),
    )


def _is_taken(kind: Kind, name: str, only: str) -> bool:
    if kind == "models" and "/" in name:
        return False
    base = name.rpartition("/")[2]
    return any(fnmatch(base, pattern) for pattern in TAKEN[kind]) and (not only or fnmatch(name, only))


def _is_blob(content: bytes, file: HubFile) -> bool:
    """Return True if bytes are the file that git names by this hash (`blob SIZE`, a zero byte, the content)."""
    if len(content) != file.size_bytes:
        return False
    head = f"blob {len(content)}\0".encode()
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest() == file.blob


def _refuse_code(config: bytes, repository: str) -> None:
    try:
        needs = json.loads(config).get("auto_map")
    except (ValueError, AttributeError, RecursionError):
        raise DataError(f"config.json of {repository} is no JSON object") from None
    if needs:
        raise DataError(
            f"{repository} needs code of its author (auto_map in its config.json), and Charter runs no such code"
        )
