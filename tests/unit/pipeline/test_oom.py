import pytest

from charter.run.watches import oom_kills


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "path"),
    [
        ("0::/run.slice/a\n", "sys/fs/cgroup/run.slice/a/memory.events"),
        ("4:memory:/box/a\n0::/\n", "sys/fs/cgroup/memory/box/a/memory.oom_control"),
        ("4:cpu,memory:/box/a\n", "sys/fs/cgroup/memory/box/a/memory.oom_control"),
        ("0::/outside/of/the/container\n", "sys/fs/cgroup/memory.events"),
        ("4:memory:/outside\n", "sys/fs/cgroup/memory/memory.oom_control"),
        ("", "proc/vmstat"),
    ],
)
def test_kills_are_counted_in_the_nearest_group_that_counts(tmp_path, cgroup, path):
    write(tmp_path, "proc/vmstat", "nr_free_pages 4\noom_kill 9\n")
    write(tmp_path, "proc/self/cgroup", cgroup)
    write(tmp_path, path, "low 0\noom 5\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills(tmp_path) == 3


def test_a_machine_that_does_not_say_has_none(tmp_path):
    assert oom_kills(tmp_path) == 0
