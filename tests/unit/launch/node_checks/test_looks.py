import errno
import os
import time
from pathlib import Path

import pytest

from charter.launch.node_checks import (
    NEEDS_RESET,
    accelerators,
    clock,
    disk,
    kernel_log,
    processor_rates,
    xid_errors,
)


def test_a_directory_with_room_passes_and_is_left_as_it_was(tmp_path):
    assert [finding.ok for finding in disk(tmp_path, least_bytes=1)] == [True, True]
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_told_with_both_numbers(tmp_path):
    space = disk(tmp_path, least_bytes=1 << 60)[0]
    assert not space.ok
    assert "asked" in space.found
    assert "disk_bytes" in space.advice


def test_a_directory_that_takes_no_file_is_told(tmp_path, monkeypatch):
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("charter.artifacts.durable.write_file", refuse)
    writing = disk(tmp_path, least_bytes=1)[1]
    assert not writing.ok
    assert "Read-only" in writing.found


def test_a_clock_that_is_an_hour_off_is_told(tmp_path, monkeypatch):
    assert clock(tmp_path).ok
    seconds = os.stat(tmp_path).st_mtime + 3600
    monkeypatch.setattr("time.time", lambda: seconds)
    assert not clock(tmp_path).ok


def test_a_node_that_stands_still_meanwhile_has_a_good_clock(tmp_path, monkeypatch):
    passed, real, touch = [0.0], time.time, Path.touch

    def slow_touch(path: Path) -> None:
        touch(path)
        passed[0] += 30.0

    monkeypatch.setattr(Path, "touch", slow_touch)
    monkeypatch.setattr("time.time", lambda: real() + passed[0])
    assert clock(tmp_path).ok


def test_rates_are_work_over_the_best_of_several_times():
    readings = iter(float(reading) for reading in range(100))
    rates = processor_rates(lambda: next(readings))
    assert rates == {"matmul_flops_per_second": 2 * 384**3, "memory_bytes_per_second": 2 * 32 * 1024**2}


@pytest.mark.parametrize("number", sorted(NEEDS_RESET))
def test_an_xid_that_needs_a_reset_is_found_in_the_kernel_log(number):
    finding = xid_errors(["6,1,2,-;usb 1-1: new device", f"4,9,9,-;NVRM: Xid (PCI:0000:c6:00): {number}, pid=1, gone"])
    assert not finding.ok
    assert finding.found == f"Xid {number} at 0000:c6:00"


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 94])
def test_an_xid_of_the_program_itself_excludes_no_node(number):
    assert xid_errors([f"NVRM: Xid (PCI:0000:c6:00): {number}, pid=1"]).ok


def test_a_machine_without_accelerators_says_so():
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has one")
    (finding,) = accelerators()
    assert finding.ok
    assert finding.found.startswith(("none", "not looked at"))


def test_a_kernel_log_that_cannot_be_read_is_empty(tmp_path):
    assert kernel_log(tmp_path / "none") == []


class FakeNvml:
    """Errors that no accelerator here has."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *, ecc: int | None, rows: tuple[int, int, int, int] | None) -> None:
        self._ecc, self._rows = ecc, rows

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetTotalEccErrors(self, device: int, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        if self._ecc is None:
            raise self.NVMLError
        return self._ecc

    def nvmlDeviceGetRemappedRows(self, device: int) -> tuple[int, int, int, int]:
        if self._rows is None:
            raise self.NVMLError
        return self._rows


@pytest.mark.parametrize(
    ("ecc", "rows", "said"),
    [
        (0, (0, 0, 0, 0), "no memory errors"),
        (0, (3, 1, 0, 0), "no memory errors"),
        (None, None, "no memory errors"),
        (2, (0, 0, 0, 0), "2 uncorrected ECC errors"),
        (0, (0, 1, 1, 0), "wait to be remapped"),
        (0, (0, 1, 0, 1), "remapping of memory rows failed"),
    ],
)
def test_what_nvml_says_of_memory(monkeypatch, ecc, rows, said):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", FakeNvml(ecc=ecc, rows=rows))
    (finding,) = accelerators()
    assert said in finding.found
    assert finding.ok == (said == "no memory errors")
