"""Every branch on the kind of device has a test that goes through it without one."""

import pytest

import device_branches


def test_no_branch_on_the_device_is_without_a_test():
    assert device_branches.problems() == []


@pytest.fixture
def house(tmp_path):
    """A small engine with one branch, its test, and a table."""
    (tmp_path / "src" / "charter" / "models").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    source = "class A:\n    def f(self, x):\n        return 1 if x.is_cuda else 2  # torch.cuda.x\n"
    (tmp_path / "src" / "charter" / "models" / "own.py").write_text(source)
    (tmp_path / "test_own.py").write_text("from charter.models import own\n")
    (tmp_path / "test_other.py").write_text("import pytest\n")

    def problems(table):
        (tmp_path / "tools" / "device_branches.toml").write_text(f"[tests]\n{table}\n")
        return device_branches.problems(tmp_path)

    return problems


def test_a_branch_without_a_test_and_a_test_in_vain_are_told(house):
    place = "src/charter/models/own.py::A.f"
    assert house(f'"{place}" = "test_own.py"') == []
    assert "without a test" in house("")[0]
    assert "does not exist" in house(f'"{place}" = "gone.py"')[0]
    assert "never names own" in house(f'"{place}" = "test_other.py"')[0]
    assert "no branch" in house(f'"{place}" = "test_own.py"\n"src/charter/models/own.py::A.g" = "test_own.py"')[0]
