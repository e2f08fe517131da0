from pathlib import Path

import pytest

from charter.ledger.place import filesystem_type, is_network_filesystem

MOUNTS = [
    "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
    "30 22 0:40 / /home rw - nfs4 server:/home rw,vers=4.2",
    "31 30 0:41 / /home/me/local\\040disk rw - xfs /dev/sdb rw",
    "broken line",
]


@pytest.mark.parametrize(
    ("directory", "expected"),
    [("/tmp/x", "ext4"), ("/home/me", "nfs4"), ("/home/me/local disk/run", "xfs"), ("/homes", "ext4")],
)
def test_the_longest_mount_point_decides(directory, expected):
    assert filesystem_type(Path(directory), MOUNTS) == expected


def test_network_file_system_is_detected_no_mountinfo_is_local(tmp_path):
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("1 0 0:1 / / rw - nfs4 server:/ rw\n")
    assert is_network_filesystem(Path("/anything"), mountinfo=mountinfo)
    assert not is_network_filesystem(Path("/anything"), mountinfo=tmp_path / "missing")
