from charter.launch.job import STAGE_MODULES, stage_command
from charter.launch.local import stage_environment
from charter.launch.machine import (
    NodeFacts,
    cpu_capability,
    cuda_facts,
    frozen_values,
    gpus_here,
    installed_version,
    stage_device,
    stage_processes,
    stage_threads,
)
from charter.models.engine_layout import CPU_VALUES
from charter.spec.project import Project, Resources
from charter.spec.stage import EvalStage, PreferenceModelStage, SftStage
from charter.spec.stage_base import StageResources

STAGE = SftStage(init="b", data=("d",))
ON_PROCESSORS = {"threads", "device", "cpu_capability", *CPU_VALUES, "torch", "transformers"}


def project(**resources):
    return Project(name="p", models={}, pipeline={"s": STAGE}, resources=Resources(**resources))


def test_threads_come_from_the_stage_then_the_project_then_the_machine(monkeypatch):
    monkeypatch.setattr("charter.launch.machine.usable_cores", lambda: 8)
    own = SftStage(init="b", data=("d",), resources=StageResources(cpus=3))
    assert stage_threads(project(cpus=2), own) == 3
    assert stage_threads(project(cpus=2), STAGE) == 2
    assert stage_threads(project(), STAGE) == 8
    assert stage_threads(project(max_parallel_stages=3), STAGE) == 2
    assert stage_threads(project(max_parallel_stages=99), STAGE) == 1


def test_a_file_that_asks_for_the_processor_gets_it():
    assert stage_device(project(accelerators=("cpu",)), STAGE) == "cpu"


def test_the_instruction_set_is_read_from_the_flags(tmp_path, monkeypatch):
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    info = tmp_path / "cpuinfo"
    for flags, expected in (
        ("sse2 avx2 fma avx512f avx512dq avx512bw avx512vl", "avx512"),
        ("sse2 avx2 fma", "avx2"),
        ("sse2", "default"),
    ):
        info.write_text(f"processor : 0\nflags : {flags}\n")
        assert cpu_capability(info) == expected
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "AVX2")
    assert cpu_capability(info) == "avx2"


def test_what_bits_depend_on_is_frozen_without_importing_torch():
    frozen = frozen_values(project(), STAGE)
    assert set(frozen) == ON_PROCESSORS
    assert installed_version("no-such-package") == "absent"


def driver_files(tmp_path, models, version="580.95.05"):
    for number, model in enumerate(models):
        place = tmp_path / "proc/gpus" / f"0000:{number}b:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 250\nDevice Minor: \t {number}\n")
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/version").write_text(f"{version}\n")
    return tmp_path / "proc", tmp_path / "sys"


def test_gpu_driver_and_libraries_are_read_without_torch(tmp_path, monkeypatch):
    versions = {"nvidia-nccl-cu12": "2.28.9", "nvidia-cublas": "13.1.0.3", "triton": "3.7.0"}
    monkeypatch.setattr("charter.launch.machine.installed_version", lambda name: versions.get(name, "absent"))
    facts = cuda_facts(*driver_files(tmp_path, ["NVIDIA H200"] * 2))
    assert facts == {
        "gpu": "NVIDIA H200",
        "driver": "580.95.05",
        "nccl": "2.28.9",
        "cublas": "13.1.0.3",
        "triton": "3.7.0",
    }


def test_a_machine_whose_driver_says_nothing_has_no_facts_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("charter.launch.machine.installed_version", lambda name: "absent")
    assert cuda_facts(tmp_path, tmp_path) == {}


def node(model):
    cuda = {"gpu": model, "driver": "580.95.05"}
    return NodeFacts(gpus=1, cpu_capability="avx2", torch="2.13.0", transformers="5.0", cuda=cuda)


def test_the_gpu_is_frozen_where_it_computes_and_nowhere_else():
    frozen = frozen_values(project(), STAGE, node("NVIDIA H200"))
    assert (frozen["device"], frozen["gpu"], frozen["driver"]) == ("cuda", "NVIDIA H200", "580.95.05")
    on_processors = frozen_values(project(accelerators=("cpu",)), STAGE, node("NVIDIA H200"))
    assert set(on_processors) == ON_PROCESSORS


def test_a_micro_batch_that_the_file_asks_for_reaches_the_stage():
    small = SftStage(init="b", data=("d",), resources=StageResources(micro_batch=4))
    assert frozen_values(project(), small)["micro_batch"] == 4
    pairs = PreferenceModelStage(init="b", data=("d",), resources=StageResources(micro_batch=4))
    assert frozen_values(project(), pairs)["micro_batch"] == 2, "two sequences per row"


def test_processes_are_asked_for_with_the_accelerators_and_share_the_cores(monkeypatch):
    monkeypatch.setattr("charter.launch.machine.usable_cores", lambda: 8)
    monkeypatch.setattr("charter.launch.machine.gpus_here", lambda: 0)
    four = project(accelerators=("cpu:4",))
    assert (stage_processes(four, STAGE), stage_threads(four, STAGE), stage_device(four, STAGE)) == (4, 2, "cpu")
    assert frozen_values(four, STAGE)["world_size"] == 4
    assert stage_threads(project(accelerators=("cpu:16",)), STAGE) == 1
    own = SftStage(init="b", data=("d",), resources=StageResources(accelerators="cpu:2", cpus=6))
    assert (stage_processes(four, own), stage_threads(four, own)) == (2, 3)
    assert stage_processes(four, EvalStage(policy="b", against="c")) == 1
    assert stage_processes(project(accelerators=("H100:8",)), STAGE) == 1, "no GPU here: one process on the processors"


def test_on_gpus_there_is_a_process_for_each_that_is_asked_for(monkeypatch):
    monkeypatch.setattr("charter.launch.machine.gpus_here", lambda: 8)
    assert stage_processes(project(accelerators=("H100:8",)), STAGE) == 8
    assert (stage_processes(project(), STAGE), stage_device(project(), STAGE)) == (1, "cuda")
    assert stage_device(project(accelerators=("cpu:2",)), STAGE) == "cpu"


def test_gpus_are_counted_as_far_as_they_are_visible(tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    for visible, count in ((None, 3), ("0,1", 2), ("", 0), ("-1", 0), ("0,1,2,3", 3)):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpus_here(tmp_path) == count


def test_a_layout_of_the_file_is_frozen_where_it_is_not_the_default():
    resources = StageResources(zero=3, tensor=1, recompute="full", offload="none", attention="eager", compile=True)
    frozen = frozen_values(project(accelerators=("cpu:2",)), SftStage(init="b", data=("d",), resources=resources))
    layout = {"world_size": 2, "zero": 3, "recompute": "full", "attention": "eager", "compile": 1}
    assert {**frozen, **layout} == frozen
    assert not {"tensor", "offload", "replicas", "micro_batch"} & set(frozen)


def test_stages_do_not_spin_while_idle_and_have_explicit_threads():
    environment = stage_environment(threads=3)
    assert (environment["OMP_WAIT_POLICY"], environment["OMP_NUM_THREADS"]) == ("PASSIVE", "3")


def test_a_stage_is_a_module_and_a_directory(tmp_path):
    command = stage_command(STAGE_MODULES["ppo"], tmp_path)
    assert command[1:] == ["-m", "charter.train.ppo", "--stage-dir", str(tmp_path)]
