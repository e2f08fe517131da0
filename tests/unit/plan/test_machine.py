from dataclasses import replace

import pytest

from charter.plan.machine import (
    Machine,
    ProbeClock,
    free_memory_bytes,
    probe_machine,
    usable_cores,
    usable_memory_bytes,
)

GIB = 2**30


def test_probe_finds_positive_figures():
    machine = probe_machine()
    assert machine.cores >= 1
    assert machine.memory_bytes > 0
    assert machine.flops_per_second > 1e8
    assert machine.memory_bytes_per_second > 1e8


def test_memory_limit_of_a_cgroup_counts(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    assert usable_memory_bytes(tmp_path, meminfo) == 16 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert usable_memory_bytes(tmp_path, meminfo) == 16 * GIB
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    assert usable_memory_bytes(tmp_path, meminfo) == 4 * GIB


def test_a_job_below_the_root_has_its_own_limit(tmp_path, monkeypatch):
    meminfo, own = tmp_path / "meminfo", tmp_path / "own"
    meminfo.write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    own.write_text("0::/slurm/job_7/step_0\n")
    monkeypatch.setattr("charter.plan.machine.OWN_CGROUP", own)
    assert free_memory_bytes(tmp_path, meminfo) == 8 * GIB
    job = tmp_path / "slurm" / "job_7"
    job.mkdir(parents=True)
    (job / "memory.max").write_text(f"{6 * GIB}\n")
    (job / "memory.current").write_text(f"{4 * GIB}\n")
    assert usable_memory_bytes(tmp_path, meminfo) == 6 * GIB
    assert free_memory_bytes(tmp_path, meminfo) == 2 * GIB
    (job / "memory.stat").write_text(f"anon 7\ninactive_file {1 * GIB}\n")
    assert free_memory_bytes(tmp_path, meminfo) == 3 * GIB
    (tmp_path / "memory.max").write_text(f"{5 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{5 * GIB}\n")
    assert free_memory_bytes(tmp_path, meminfo) == 0


def test_core_quota_of_a_cgroup_counts(tmp_path):
    free = usable_cores(tmp_path)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == free
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path) == 1


def test_a_thread_gets_its_share_of_the_machine_and_further_threads_add_less_than_the_first():
    machine = Machine(name="m", cores=4, memory_bytes=8e9, flops_per_second=4e11, memory_bytes_per_second=2e10)
    one, two = machine.processor(threads=1), machine.processor(threads=2)
    assert one.peak_flops_per_second("fp32") == pytest.approx(1e11)
    assert one.memory_bytes_per_second == pytest.approx(0.5e10)
    assert two.peak_flops_per_second("fp32") == pytest.approx(1.3e11)
    assert two.memory_bytes_per_second == pytest.approx(0.65e10)
    assert machine.processor(threads=64).dense_flops_per_second == machine.processor().dense_flops_per_second
    assert machine.processor().peak_flops_per_second("fp32") == pytest.approx(1.9e11)


def test_other_programs_slow_a_stage_here_by_equal_shares():
    busy = Machine(
        name="m", cores=4, memory_bytes=8e9, flops_per_second=4e11, memory_bytes_per_second=2e10, busy_cores=6.0
    )
    assert busy.slowdown(threads=2) == 2.0
    assert replace(busy, busy_cores=1.0).slowdown(threads=2) == 1.0, "a core is free"


def test_a_probe_with_half_the_processors_sees_as_many_others():
    def others(threads: int, used: float) -> float:
        clock = ProbeClock()
        clock.note(threads=threads, wall=0.1, used=used / 2)
        clock.note(threads=threads, wall=0.1, used=used / 2)
        return clock.others(4)

    assert others(4, used=0.4) == pytest.approx(4.0)
    assert others(4, used=0.79) == 0.0, "its own noise"
    assert others(2, used=0.2) == 0.0, "cores that were not probed may be free"


@pytest.mark.parametrize(("now", "recent", "counted"), [(0.0, 3.0, 0.0), (1.0, 3.0, 1.0), (4.0, 3.0, 3.0)])
def test_a_run_that_has_ended_is_no_other_program(now, recent, counted, monkeypatch):
    monkeypatch.setattr(ProbeClock, "others", lambda clock, cores: now)
    monkeypatch.setattr("charter.plan.machine.os.getloadavg", lambda: (9.0, recent, 9.0))
    assert probe_machine().busy_cores == counted
