"""A judge as a pool of servers on two nodes of a real Slurm."""

import pooled


def test_a_killed_server_of_a_slurm_pool_loses_no_answer(cluster, tmp_path):
    here, there = pooled.labels_with_a_killed_server(
        tmp_path, {**cluster.environment, "OMP_NUM_THREADS": "1"}, "--on", "slurm"
    )
    assert there == here
