import pytest

from charter.engines.project import load_project
from charter.errors import SpecError

BASE = (
    "name: x\nmodels: {base: {model: openai/gpt2}}\ndata: {chat: chat.jsonl}\n"
    "pipeline: {s: {kind: sft, init: base, data: chat}}\n"
)


def read(tmp_path, section):
    (tmp_path / "charter.yaml").write_text(BASE + section)
    return load_project(tmp_path).risk


def test_section_is_read_in_the_units_that_people_write(tmp_path):
    risk = read(tmp_path, "risk: {detection: slurm, restart: 8m, spares: 3, save_bandwidth: 2GB, spot_mean_up: 3h}\n")
    assert (risk.detection, risk.restart, risk.spares) == ("slurm", 480, 3)
    assert (risk.save_bandwidth, risk.spot_mean_up) == (2_000_000_000, 10_800)
    assert read(tmp_path, "risk: {detection: 30m}\n").detection == 1800
    assert read(tmp_path, "").spares == "auto"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{detection: pager}", "neither slurm, ray, kubernetes, nccl, watchdog, agents nor a time"),
        ("{spares: -1}", "must be auto or from 0"),
        ("{out_of_memory: 0.6}", "at most 0.5"),
        ("{out_of_memory: 0}", "out_of_memory"),
        ("{spot_availability: 1.5}", "above 0 and at most 1"),
        ("{failures_per_node_day: -1}", "must be 0 or more"),
        ("{detectin: slurm}", "did you mean 'detection'"),
    ],
)
def test_wrong_values_are_told(tmp_path, section, message):
    with pytest.raises(SpecError, match=message):
        read(tmp_path, f"risk: {section}\n")
