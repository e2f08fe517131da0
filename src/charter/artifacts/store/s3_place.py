"""A bucket as a place, by s3fs: Amazon's S3 or any store that speaks its protocol.

Where it is and who asks comes from the environment as for every S3 client: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL,
AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE. Nothing of it is written down. Addresses are in path
style and checksums are sent only where the protocol demands them: what every store understands.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from charter.artifacts import faults
from charter.artifacts.file_facts import FileFact, check_chunks
from charter.artifacts.safe_path import wrong_name
from charter.artifacts.store.place import BUCKET, NO_TAGS, READ_BYTES, Kept, PlaceError, Tags
from charter.artifacts.store.s3_client import (
    errors_of_stores,
    file_system,
    is_past_the_end,
    knows_no_condition,
    refuses_condition,
)
from charter.artifacts.store.s3_tags import Tagger
from charter.errors import DataError, UsageError

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
        """See `Place`."""
        with self._asked(), faults.durable_action(f"upload {key}"):
            self._tagger.write(tags, partial(self._files.pipe_file, self._at(key), content))
        self._check_uploaded(key, content, tags)

    def put_new(self, key: str, content: bytes, *, tags: Tags = NO_TAGS) -> bool:
        """See `Place`; a store that knows no conditional writes is asked first what is there."""
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
        """See `Place`."""
        md5 = hashlib.md5(usedforsecurity=False)
        check_chunks(path.name, _blocks(path, md5.update), fact)
        with self._asked(), faults.durable_action(f"upload {key}"):
            self._tagger.write(tags, partial(self._files.put_file, str(path), self._at(key)))
        if self._told_md5(key, tags) != md5.hexdigest():
            check_chunks(f"{self._where}/{key}", self.chunks(key), fact)

    def get(self, key: str) -> bytes | None:
        """See `Place`."""
        try:
            return b"".join(self.chunks(key))
        except FileNotFoundError:
            return None

    def chunks(self, key: str) -> Iterator[bytes]:
        """See `Place`."""
        start = 0
        while block := self._block(key, start):
            yield block
            start += len(block)
            if len(block) < READ_BYTES:
                return

    def size(self, key: str) -> int | None:
        """See `Place`."""
        try:
            return self._facts(key).bytes
        except FileNotFoundError:
            return None

    def listed(self, prefix: str) -> list[Kept]:
        """See `Place`."""
        asked = {"Bucket": self._bucket, "Prefix": self._path + prefix}
        found, more = [], True
        while more:
            with self._asked():
                answer = self._files.call_s3("list_objects_v2", **asked)
            for item in answer.get("Contents", ()):
                key, written_at = item["Key"].removeprefix(self._path), item["LastModified"].timestamp()
                found.append(Kept(key=key, bytes=int(item["Size"]), written_at=written_at))
            asked["ContinuationToken"] = answer.get("NextContinuationToken", "")
            more = bool(answer.get("IsTruncated"))
        return found

    def remove(self, key: str) -> None:
        """See `Place`."""
        with self._asked(), faults.durable_action(f"remove {key}"):
            try:
                self._files.rm_file(self._at(key))
            except FileNotFoundError:
                return

    def now(self) -> float:
        """See `Place`: the time that an object written now has."""
        with self._asked():
            self._files.pipe_file(self._at(_CLOCK), str(time.time()).encode())
        return self._facts(_CLOCK).written_at

    def unfinished(self) -> list[Kept]:
        """See `Place`: parts of uploads that were neither completed nor aborted; their size is not told."""
        with self._asked():
            found = self._files.list_multipart_uploads(self._bucket)
        return [
            Kept(key=f"{item['Key']}#{item['UploadId']}", bytes=0, written_at=item["Initiated"].timestamp())
            for item in found
            if item["Key"].startswith(self._path)
        ]

    def abandon(self, left: Kept) -> None:
        """See `Place`."""
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
        """What the store gives as entity tag: the MD5 of what it received, for objects that came in one part."""
        with self._asked():
            facts = self._facts(key)
        self._tagger.look(tags, facts.tags)
        return facts.tag

    def _facts(self, key: str) -> "_Facts":
        """What the store tells of an object with its first byte.

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
