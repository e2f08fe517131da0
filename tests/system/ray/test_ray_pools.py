"""A judge as a pool of servers on two nodes of a real Ray cluster."""

import os

import pooled


def test_a_killed_server_of_a_ray_pool_loses_no_answer(cluster, tmp_path):
    address = f"launch.ray.address={cluster.address}"
    here, there = pooled.labels_with_a_killed_server(
        tmp_path, {**os.environ, "OMP_NUM_THREADS": "1"}, "--on", "ray", "--set", address
    )
    assert there == here
