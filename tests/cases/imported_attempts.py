"""An attempt of a run that somebody else started, as an import writes it: eight rented H100 for an hour, killed."""

from charter.ledger.imported import ImportedAttempt

KILLED = ImportedAttempt(
    key="abc:0",
    content="1" * 64,
    run="demo",
    stage="sft",
    kind="sft",
    fingerprint="f" * 64,
    accelerator="H100-SXM-80GB",
    count=8,
    infra="aws",
    market="spot",
    started_at=1000.0,
    duration_milliseconds=3_600_000,
    first_step=0,
    last_step=10,
    outcome="killed",
    tokens=500,
    price_micro_usd_per_hour=2_000_000,
    price_source="told",
    note="from a log",
)
