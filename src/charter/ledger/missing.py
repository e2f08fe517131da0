"""The error of a ledger that has not been made."""

from charter.errors import UsageError


class NoLedgerError(UsageError):
    """There is no ledger yet: no file, or none of its tables on the server."""
