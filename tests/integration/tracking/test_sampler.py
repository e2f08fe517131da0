"""Meters of this machine against processes whose use is known."""

import os
import subprocess
import sys
import time

from scheduler_contract import alive
from waiting import eventually

from charter.metering.sampler import HostMeter, MeterSampler, RaplMeter, with_descendants
from charter.tracking import meter_rows, summarise

BUSY = "import time; end = time.process_time() + {cpu} + 0.05\nwhile time.process_time() < end: pass\ninput()"
"""A little longer than is waited for: the system tells user and system time in whole ticks, each rounded down."""

HOLDER = (
    "import subprocess, sys\n"
    f"child = subprocess.Popen([sys.executable, '-c', {BUSY.format(cpu=0.3)!r}], stdin=subprocess.PIPE)\n"
    "input()\nchild.communicate(b'\\n')\ninput()"
)
"""Has one child, and ends it at the first line."""


def start(code):
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def end(process):
    process.communicate(b"\n")


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()  # noqa: SIM115
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_processor_time_is_that_of_the_processes_alone():
    meter = HostMeter()
    process = start(BUSY.format(cpu=0.5))
    eventually(lambda: cpu_seconds(process.pid) >= 0.5)
    sample = meter.look([process.pid])
    used = cpu_seconds(process.pid)
    end(process)
    assert abs(sample.cpu_seconds - used) <= 0.1
    assert (sample.processes, sample.resident_bytes > 1 << 20) == (1, True)
    assert meter.look([process.pid]).processes == 0


def test_what_was_used_before_the_first_look_does_not_count():
    process = start(BUSY.format(cpu=0.3))
    eventually(lambda: cpu_seconds(process.pid) >= 0.3)
    meter = HostMeter()
    assert meter.look([process.pid]).cpu_seconds == 0.0
    end(process)


def test_a_clock_that_is_set_is_no_time_of_the_machine(monkeypatch):
    meter, day = HostMeter(), 86_400.0
    now = time.time() + day
    monkeypatch.setattr(time, "time", lambda: now)
    sample = meter.look([])
    assert sample.time == now
    assert sample.interval_seconds < day / 2


def test_writes_are_counted(tmp_path):
    meter = HostMeter()
    code = f"import os; f = open({str(tmp_path / 'x')!r}, 'wb'); f.write(b'x' * 2**20); f.flush(); os.fsync(f.fileno())"
    process = start(f"{code}\ninput()")
    eventually(lambda: (tmp_path / "x").exists() and (tmp_path / "x").stat().st_size >= 2**20)
    sample = meter.look([process.pid])
    end(process)
    assert sample.written_bytes >= 0
    assert sample.node_memory_bytes > sample.node_memory_used_bytes > 0


def test_descendants_come_with_their_parents():
    process = start("import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])")
    eventually(lambda: len(with_descendants([process.pid])) >= 2)
    assert process.pid in with_descendants([process.pid])
    assert with_descendants([os.getpid()], without=process.pid).count(process.pid) == 0
    end(process)


def test_energy_of_processors_where_the_kernel_tells_it(tmp_path):
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "energy_uj").write_text("9000000\n")
    (package / "max_energy_range_uj").write_text("10000000\n")
    meter = RaplMeter(tmp_path)
    (package / "energy_uj").write_text("500000\n")
    assert meter.look() == 1.5, "the counter has begun again at its end"
    (package / "energy_uj").unlink()
    assert meter.look() is None
    assert RaplMeter(tmp_path / "none").look() is None


def test_a_sampler_in_a_process_of_its_own(tmp_path):
    holder = start(HOLDER)  # whose only child is metered: this process may have children of other tests
    with MeterSampler(tmp_path, every_seconds=0.2, below=holder.pid, node="n1", gpus=""):
        eventually(lambda: any(row.processes for row in meter_rows(tmp_path)))
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        eventually(lambda: sum(row.processes == 0 for row in meter_rows(tmp_path)) >= 2)
    end(holder)
    found = summarise(meter_rows(tmp_path))
    assert (found.nodes, found.gpu_note) == (("n1",), "no GPU metering: the stage computes on processors")
    assert found.no_process_seconds > 0


def test_a_sampler_leaves_with_its_starter(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from charter.metering.sampler import MeterSampler\n"
        f"s = MeterSampler(Path({str(tmp_path)!r}), every_seconds=0.1, below=os.getpid(), gpus='')\n"
        "s.start(); print(s._process.pid, flush=True); input(); os._exit(1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pid = int(process.stdout.readline())
    process.communicate(b"\n")
    eventually(lambda: not alive(pid))


def test_an_interval_of_nothing_samples_nothing(tmp_path):
    with MeterSampler(tmp_path, every_seconds=0.0):
        pass
    assert list(tmp_path.iterdir()) == []
