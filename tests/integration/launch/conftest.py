"""Marks the long tail of the launchers' contract on this machine's own jobs; Slurm and Ray have suites of their own."""

import pytest

TAIL = {
    "test_a_lost_node_and_its_zombie_never_write_beside_their_successor",
    "test_two_attempts_alive_at_once_and_the_earlier_one_ends",
    "test_a_stage_that_outlasts_its_time_limit_is_stopped_at_a_checkpoint_and_goes_on",
    "test_a_job_that_is_no_longer_what_the_file_says_is_ended",
    "test_what_a_job_did_while_no_supervisor_lived_is_in_the_ledger",
    "test_an_array_is_one_submission_when_nothing_happens",
    "test_a_failing_stage_ends_the_run_with_its_own_words",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name == "test_subprocess_engine.py" and item.originalname in TAIL:
            item.add_marker("thorough")
