"""A bucket as a location of copies, by s3fs: Amazon's S3 or any store that speaks its protocol."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from charter.artifacts import faults
from charter.artifacts.fingerprint import FileFact, check_chunks
from charter.artifacts.store.place import BUCKET, NO_TAGS, READ_BYTES, PlaceError, StoredObject, Tags
from charter.artifacts.whole_dir import wrong_name
from charter.errors import DataError, UsageError, needing

CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 10, 60, 3
"""A store that is down must be noticed within a minute; what fails then is tried again later by whoever asked."""


def file_system() -> Any:
    """A client of s3fs that keeps no list of names; MissingExtraError where s3fs is not installed."""
    with needing("keeping copies in a bucket needs s3fs", "store"):
        import s3fs
    config = {
        "s3": {"addressing_style": "path"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
    }
    return s3fs.S3FileSystem(
        endpoint_url=own_endpoint(), config_kwargs=config, use_listings_cache=False, skip_instance_cache=True
    )


def own_endpoint() -> str | None:
    """The address of a store that is not AWS's; None where the environment names none."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def errors_of_stores() -> tuple[type[BaseException], ...]:
    """Return the exceptions that come from a store, and not from Charter."""
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    return (OSError, BotoCoreError, ClientError)


def is_past_the_end(error: BaseException) -> bool:
    """Return True if a store says that an object has no byte where one was asked for."""
    return _any_cause(error, lambda text: "InvalidRange" in text or "not satisfiable" in text.lower())


def knows_no_condition(error: BaseException) -> bool:
    """Return True if a store says that it has no conditional writes."""
    return _any_cause(error, lambda text: "NotImplemented" in text or "not implemented" in text)


def refuses_condition(error: BaseException) -> bool:
    """Return True if a store says that something is there already."""
    return _any_cause(
        error, lambda text: "PreconditionFailed" in text or "(412)" in text or "pre-conditions you specified" in text
    )


def _any_cause(error: BaseException | None, matches: Callable[[str], bool]) -> bool:
    while error is not None:
        if matches(f"{type(error).__name__} {error}"):
            return True
        error = error.__cause__ or error.__context__
    return False


REFUSALS = (400, 403, 405, 501)
"""What stores answer to tags that they do not take: invalid, not allowed to whoever asks, not implemented (HTTP)."""


class Tagger:
    """Writes with tags. A store that takes the same without them is told of once, and gets none from then on."""

    def __init__(self, where: str, tell: Callable[[str], None]) -> None:
        self._where = where
        self._tell = tell
        self._sends = self._looks = True

    def write(self, tags: Mapping[str, str], action: Callable[..., object]) -> None:
        """Do `action`, which takes what S3 calls `Tagging`."""
        if not tags or not self._sends:
            action()
            return
        try:
            action(Tagging=urlencode(tags, quote_via=quote))
        except Exception as error:
            if http_status(error) not in REFUSALS:
                raise
            action()
            self._sends = False
            self._tell(
                f"{self._where} refuses tags on what is written ({_said(error)}); copies go on without them\n  a store "
                "that keeps tags needs the permission s3:PutObjectTagging beside s3:PutObject"
            )

    def look(self, tags: Mapping[str, str], count: int) -> None:
        """Compare what was sent with how many tags the store shows on it."""
        if self._sends and self._looks and count < len(tags):
            self._looks = False
            self._tell(
                f"{self._where} shows {count} of {len(tags)} tags on what was written: it keeps none, or whoever asks "
                "may not see them (s3:GetObjectTagging)"
            )


def http_status(error: BaseException | None) -> int | None:
    """The status of the answer that an error was made from; None where there was no answer."""
    while error is not None:
        answer = getattr(error, "response", None)
        if isinstance(answer, Mapping) and "ResponseMetadata" in answer:
            status = answer["ResponseMetadata"].get("HTTPStatusCode")
            return None if status is None else int(status)
        error = error.__cause__ or error.__context__
    return None


def _said(error: Exception) -> str:
    return f"HTTP {http_status(error)}: {error}"


_CLOCK = "clock"


@dataclass(frozen=True, kw_only=True)
class _Facts:
    bytes: int
    tag: str
    written_at: float
    tags: int
    """How many tags the store shows."""


class S3Place:
    """Objects of one bucket below a path."""

    def __init__(self, where: str, *, tell: Callable[[str], None] = lambda _: None) -> None:
        bucket, _, path = where.removeprefix(BUCKET).rstrip("/").partition("/")
        if not bucket or (path and wrong_name(path) is not None):
            raise UsageError(f"{where} does not name a bucket; give s3://bucket or s3://bucket/path")
        self._where, self._bucket = where, bucket
        self._path = f"{path}/" if path else ""
        self._files: Any = file_system()
        self._conditional = True
        self._tagger = Tagger(where, tell)

    @property
    def where(self) -> str:
        """Bucket and path."""
        return self._where

    def put(self, key: str, content: bytes, *, tags: Tags = NO_TAGS) -> None:
        """See `CopyLocation`."""
        with self._asked(), faults.durable_action(f"upload {key}"):
            self._tagger.write(tags, partial(self._files.pipe_file, self._at(key), content))
        self._check_uploaded(key, content, tags)

    def put_new(self, key: str, content: bytes, *, tags: Tags = NO_TAGS) -> bool:
        """See `CopyLocation`; a store that knows no conditional writes is asked first what is there."""
        if self._conditional:
            try:
                with faults.durable_action(f"upload {key}"):
                    self._tagger.write(tags, partial(self._files.pipe_file, self._at(key), content, mode="create"))
            except FileExistsError:
                return False
            except Exception as error:
                if refuses_condition(error):
                    return False
                if not knows_no_condition(error):
                    raise self._failed(error) from error
                self._conditional = False
            else:
                self._check_uploaded(key, content, tags)
                return True
        if self.size(key) is not None:
            return False
        self.put(key, content, tags=tags)
        return True

    def upload(self, key: str, path: Path, fact: FileFact, *, tags: Tags = NO_TAGS) -> None:
        """See `CopyLocation`."""
        md5 = hashlib.md5(usedforsecurity=False)
        check_chunks(path.name, _blocks(path, md5.update), fact)
        with self._asked(), faults.durable_action(f"upload {key}"):
            self._tagger.write(tags, partial(self._files.put_file, str(path), self._at(key)))
        if self._told_md5(key, tags) != md5.hexdigest():
            check_chunks(f"{self._where}/{key}", self.chunks(key), fact)

    def get(self, key: str) -> bytes | None:
        """See `CopyLocation`."""
        try:
            return b"".join(self.chunks(key))
        except FileNotFoundError:
            return None

    def chunks(self, key: str) -> Iterator[bytes]:
        """See `CopyLocation`."""
        start = 0
        while block := self._block(key, start):
            yield block
            start += len(block)
            if len(block) < READ_BYTES:
                return

    def size(self, key: str) -> int | None:
        """See `CopyLocation`."""
        try:
            return self._facts(key).bytes
        except FileNotFoundError:
            return None

    def listed(self, prefix: str) -> list[StoredObject]:
        """See `CopyLocation`."""
        query = {"Bucket": self._bucket, "Prefix": self._path + prefix}
        objects, more = [], True
        while more:
            with self._asked():
                answer = self._files.call_s3("list_objects_v2", **query)
            for item in answer.get("Contents", ()):
                key, written_at = item["Key"].removeprefix(self._path), item["LastModified"].timestamp()
                objects.append(StoredObject(key=key, bytes=int(item["Size"]), written_at=written_at))
            query["ContinuationToken"] = answer.get("NextContinuationToken", "")
            more = bool(answer.get("IsTruncated"))
        return objects

    def remove(self, key: str) -> None:
        """See `CopyLocation`."""
        with self._asked(), faults.durable_action(f"remove {key}"):
            try:
                self._files.rm_file(self._at(key))
            except FileNotFoundError:
                return

    def now(self) -> float:
        """See `CopyLocation`: the time that an object written now has."""
        with self._asked():
            self._files.pipe_file(self._at(_CLOCK), str(time.time()).encode())
        return self._facts(_CLOCK).written_at

    def unfinished(self) -> list[StoredObject]:
        """See `CopyLocation`: parts of uploads that were neither completed nor aborted; their size is not told."""
        with self._asked():
            uploads = self._files.list_multipart_uploads(self._bucket)
        return [
            StoredObject(key=f"{item['Key']}#{item['UploadId']}", bytes=0, written_at=item["Initiated"].timestamp())
            for item in uploads
            if item["Key"].startswith(self._path)
        ]

    def abandon(self, left: StoredObject) -> None:
        """See `CopyLocation`."""
        key, _, upload = left.key.rpartition("#")
        with self._asked():
            self._files.abort_mpu(self._bucket, key, upload)

    def _at(self, key: str) -> str:
        if (wrong := wrong_name(key)) is not None:
            raise DataError(f"{key!r} is refused as the name of an object: {wrong}")
        return f"{self._bucket}/{self._path}{key}"

    def _check_uploaded(self, key: str, content: bytes, tags: Tags) -> None:
        """Compare what the store received: its MD5 where it tells that, else the content read back."""
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if self._told_md5(key, tags) == md5 or self.get(key) == content:
            return
        raise PlaceError(f"{self._where}/{key} is not what was sent; it will be sent again")

    def _told_md5(self, key: str, tags: Tags) -> str:
        """Return the store's entity tag: the MD5 of what it received, for objects that came in one part."""
        with self._asked():
            facts = self._facts(key)
        self._tagger.look(tags, facts.tags)
        return facts.tag

    def _facts(self, key: str) -> "_Facts":
        """Read the facts that the store gives of an object with its first byte.

        By GET: Swift's answer to HEAD for what is missing has a body, which no client understands.
        """
        from fsspec.asyn import sync

        at = self._at(key).removeprefix(f"{self._bucket}/")
        with self._asked(may_lack=True):
            try:
                answer = self._files.call_s3("get_object", Bucket=self._bucket, Key=at, Range="bytes=0-0")
            except OSError as error:
                if not is_past_the_end(error):
                    raise
                answer = self._files.call_s3("get_object", Bucket=self._bucket, Key=at)  # it is empty
            sync(self._files.loop, answer["Body"].read)
            length = answer.get("ContentRange", "").rpartition("/")[2] or answer["ContentLength"]
            written_at = float(answer["LastModified"].timestamp())
            tag, tags = str(answer.get("ETag", "")).strip('"'), int(answer.get("TagCount") or 0)
            return _Facts(bytes=int(length), tag=tag, written_at=written_at, tags=tags)

    def _block(self, key: str, start: int) -> bytes:
        """Bytes from a place on; empty past the end."""
        with self._asked(may_lack=True):
            try:
                return bytes(self._files.cat_file(self._at(key), start=start, end=start + READ_BYTES))
            except OSError as error:
                if is_past_the_end(error):
                    return b""
                raise

    @contextmanager
    def _asked(self, *, may_lack: bool = False) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except FileNotFoundError as error:
            if may_lack:
                raise
            raise self._failed(error) from error
        except errors_of_stores() as error:
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> PlaceError:
        return PlaceError(f"{self._where} cannot be used now: {type(error).__name__}: {error}")


def _blocks(path: Path, update: Callable[[bytes], None]) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            update(block)
            yield block
