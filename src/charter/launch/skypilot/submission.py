"""Handing a rendered pipeline to SkyPilot's own command. Rendered and schema-checked; no cloud was ever asked here."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from charter.artifacts import durable
from charter.errors import MissingExtraError, StageError
from charter.launch.secret_values import secret_values
from charter.launch.skypilot.task import launch_command, render_pipeline
from charter.launch.submission import secrets_of
from charter.spec.project import Project

FILE = "skypilot.yaml"


def submit(project: Project, root: Path, stages: Sequence[str] = ()) -> str:
    """Write the pipeline beside the run and launch it; returns what `sky` printed."""
    if shutil.which("sky") is None:
        raise MissingExtraError(
            "the command sky is not on the path here\n"
            '  pip install "skypilot[aws,gcp,lambda]" in an environment of its own; or --print, and submit it'
        )
    secret_values(dict(secrets_of(project)))
    file = root / "run" / FILE
    durable.make_dir(file.parent)
    durable.write_file(file, render_pipeline(project, stages))
    done = subprocess.run(
        launch_command(project, str(file), stages), cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise StageError(f"sky did not take the pipeline (exit code {done.returncode}):\n  {said}\n  it lies in {file}")
    return done.stdout
