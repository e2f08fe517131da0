"""How S3 stores are spoken to: the client of s3fs, and what stores mean by their errors."""

import os
from collections.abc import Callable
from typing import Any

from charter.errors import MissingExtraError

PIP_COMMAND = 'pip install "charter-plan[store]"'
CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 10, 60, 3
"""A store that is down must be noticed within a minute; what fails then is tried again later by whoever asked."""


def file_system() -> Any:
    """A client of s3fs that keeps no list of names; MissingExtraError where s3fs is not installed."""
    try:
        import s3fs
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"keeping copies in a bucket needs {error.name}: {PIP_COMMAND}") from None
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
    """What goes wrong with a store, and not with Charter."""
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    return (OSError, BotoCoreError, ClientError)


def is_past_the_end(error: BaseException) -> bool:
    """Whether a store says that an object has no byte where one was asked for."""
    return _any_cause(error, lambda text: "InvalidRange" in text or "not satisfiable" in text.lower())


def knows_no_condition(error: BaseException) -> bool:
    """Whether a store says that it has no conditional writes."""
    return _any_cause(error, lambda text: "NotImplemented" in text or "not implemented" in text)


def refuses_condition(error: BaseException) -> bool:
    """Whether a store says that something is there already."""
    return _any_cause(
        error, lambda text: "PreconditionFailed" in text or "(412)" in text or "pre-conditions you specified" in text
    )


def _any_cause(error: BaseException | None, matches: Callable[[str], bool]) -> bool:
    while error is not None:
        if matches(f"{type(error).__name__} {error}"):
            return True
        error = error.__cause__ or error.__context__
    return False
