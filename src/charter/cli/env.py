"""`charter check versions`: versions for a bug report."""

from charter.cli.common import JsonOption, print_json

PACKAGES = (
    "charter-plan",
    "typer",
    "pydantic",
    "numpy",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "sqlalchemy",
    "aiohttp",
    "ray",
    "mlflow",
    "mlflow-skinny",
    "wandb",
    "tensorboard",
    "starlette",
    "nvidia-ml-py",
)
TOOLS = (
    ("slurm", ("sbatch", "--version")),
    ("kubectl", ("kubectl", "version", "--client")),
    ("sky", ("sky", "--version")),
)
"""Engines whose command line is asked for its version, where it is installed."""


def env(json_: JsonOption = False) -> None:
    """Print versions for a bug report; holds no path, name or key."""
    import platform

    from charter.launch.machine import cpu_capability, gpus_here, installed_version
    from charter.plan.machine import usable_cores, usable_memory_bytes
    from charter.run.cluster_checks import ask
    from charter.run.doctor import examine_drivers
    from charter.units import format_bytes

    versions = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(usable_cores()),
        "memory": format_bytes(usable_memory_bytes()),
        "cpu capability": cpu_capability(),
        "accelerators": examine_drivers()[0].found if gpus_here() else "none",
        **{name: installed_version(name) for name in PACKAGES},
        **{name: said.text for name, command in TOOLS if (said := ask(command)).ok},
    }
    if json_:
        print_json(versions)
        return
    for name, value in versions.items():
        print(f"{name:<16} {value}")
