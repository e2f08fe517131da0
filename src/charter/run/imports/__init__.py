"""Runs that somebody else started and finished, read into the ledger, the curves and the planner's measurements."""
