"""Tags of objects in a bucket: sent with what is written, and left off where a store refuses them."""

from collections.abc import Callable, Mapping
from urllib.parse import quote, urlencode

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
