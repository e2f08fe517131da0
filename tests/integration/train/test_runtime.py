"""What a stage's process sets before it computes: one order of adding up, and a device of its own."""

import os

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from charter.errors import DataError, StageError
from charter.models.engine_layout import StageLayout
from charter.models.runtime import CUDA_ENVIRONMENT, configure
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import SftStage
from charter.train.setup import check_engine

PPO = PpoStage(policy="a", prompts=("p",), reward="r", episodes=8)
THREADS = torch.get_num_threads()


@pytest.fixture
def made_up(monkeypatch):
    """A machine with four GPUs; what is set on it, and the process's settings as they were."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in (*CUDA_ENVIRONMENT, "FLASH_ATTENTION_DETERMINISTIC", "LOCAL_RANK"):
        monkeypatch.setenv(name, "as before")
        monkeypatch.delenv(name)
    backends = (torch.backends.cudnn, torch.backends.cuda.matmul)
    names = ("deterministic", "benchmark", "allow_tf32", "allow_bf16_reduced_precision_reduction")
    before = [(part, name, getattr(part, name)) for part in backends for name in names if hasattr(part, name)]
    yield chosen
    for part, name, value in before:
        setattr(part, name, value)
    torch.use_deterministic_algorithms(False)


def test_every_rank_or_shard_of_a_machine_has_a_gpu_of_its_own(made_up, monkeypatch):
    devices = []
    for rank in range(5):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        devices.append(configure({"threads": THREADS, "device": "cuda"}))
    assert devices == made_up == [torch.device("cuda", number) for number in (0, 1, 2, 3, 0)]


def test_a_process_without_a_rank_has_the_first_gpu(made_up):
    assert configure({"threads": THREADS, "device": "cuda"}) == torch.device("cuda", 0)


@pytest.mark.parametrize("exact", ["record", "none"])
def test_less_than_bits_leaves_the_kernels_to_torch(made_up, exact):
    configure({"threads": THREADS, "device": "cuda", "attention": "flash_attention_2", "exact": exact})
    assert not torch.are_deterministic_algorithms_enabled()
    assert not {*CUDA_ENVIRONMENT, "FLASH_ATTENTION_DETERMINISTIC"} & set(os.environ)


def test_on_cuda_nothing_is_chosen_by_measuring(made_up, monkeypatch):
    """Neither by NCCL nor by cuBLAS nor by cuDNN, whatever the environment says."""
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: made_up.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
    configure({"threads": THREADS, "device": "cuda"})
    assert made_up == [":4096:8"], "libraries may read it as soon as there is a device"
    assert {name: os.environ[name] for name in CUDA_ENVIRONMENT} == CUDA_ENVIRONMENT
    in_one_order = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    by_the_switches = {"NCCL_NVLS_ENABLE": "0", "NCCL_COLLNET_ENABLE": "0"}  # they add up on their way
    assert {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **in_one_order, **by_the_switches} == CUDA_ENVIRONMENT
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction


def test_flash_attention_adds_up_in_one_order(made_up):
    configure({"threads": THREADS, "device": "cuda"})
    assert "FLASH_ATTENTION_DETERMINISTIC" not in os.environ
    configure({"threads": THREADS, "device": "cuda", "attention": "flash_attention_2"})
    assert os.environ["FLASH_ATTENTION_DETERMINISTIC"] == "1"


@pytest.mark.usefixtures("made_up")
def test_a_stage_of_cuda_does_not_resume_without_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DataError, match="none is visible"):
        configure({"threads": THREADS, "device": "cuda"})


@pytest.mark.parametrize(
    ("layout", "spec", "said"),
    [
        ({"attention": "flash_attention_2"}, SftStage(init="a", data=("d",), dtype="fp32"), "16 bits only"),
        ({"attention": "flex_attention"}, SftStage(init="a", data=("d",), dropout=0.1), "no dropout"),
        ({"world_size": 2, "tensor": 2}, SftStage(init="a", data=("d",), dropout=0.1), "beside tensor parallelism"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(layout, spec, said):
    with pytest.raises(StageError, match=said):
        check_engine(StageLayout(**layout), spec)


def test_compiled_ppo_is_refused():
    with pytest.raises(StageError, match="compile and PPO"):
        check_engine(StageLayout(compile=True), PPO)


def test_what_is_computed_rightly_is_not_refused():
    data = SftStage(init="a", data=("d",), dtype="bf16", dropout=0.1)
    for layout in ({"compile": True}, {"attention": "flash_attention_2"}, {"attention": "eager"}):
        check_engine(StageLayout(**layout), data)
    check_engine(StageLayout(), PPO)
