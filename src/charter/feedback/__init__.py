"""The constitution, critique and revision, the judge and its labels."""
