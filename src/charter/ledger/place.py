"""Where the ledger of a run is, and whether there may be one."""

from pathlib import Path

from charter.ledger.filesystem import is_server

LEDGER_FILE = "ledger.sqlite"


def ledger_place(run_dir: Path, server: str | None) -> str | Path:
    """Where the ledger of a run is: on a server (`storage.ledger`), or a file in its directory."""
    return server or run_dir / LEDGER_FILE


def has_ledger(place: str | Path) -> bool:
    """Whether there may be a ledger: a server has to be asked."""
    return is_server(place) or Path(place).exists()
