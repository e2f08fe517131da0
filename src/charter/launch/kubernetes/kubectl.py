"""The calls of `kubectl`: what is asked, what came back, and what may be tried again."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from charter.errors import MissingExtraError, StageError, UsageError
from charter.spec.launching import KubernetesSettings

CALL_SECONDS = 60.0
"""One call; an API server that takes longer is treated as out of reach."""
TRIES = 4
PAUSE_SECONDS = 0.5
"""Before the second try, and twice as long before each further one."""
_OUT_OF_REACH = (
    "connection refused",
    "was refused - did you specify",
    "connection reset",
    "i/o timeout",
    "tls handshake timeout",
    "no such host",
    "no route to host",
    "unexpected eof",
    "context deadline exceeded",
    "server is currently unable",
    "etcdserver",
    "too many requests",
    "serviceunavailable",
)
_REFUSED = ("forbidden", "unauthorized", "you must be logged in", "is invalid", "badrequest", "strict decoding error")


class ClusterOutOfReachError(StageError):
    """The API server does not answer; jobs that run go on without it."""


@dataclass(frozen=True, kw_only=True)
class KubectlOutput:
    """Output of a call, and its exit code."""

    code: int
    out: str
    err: str


def run_process(command: Sequence[str], text: str | None) -> KubectlOutput:
    """Run `kubectl` itself."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=CALL_SECONDS, check=False, stdin=None
        )
    except FileNotFoundError:
        raise MissingExtraError(
            f"Kubernetes needs {command[0]}, which is not on the path here\n"
            "  install it (https://kubernetes.io/docs/tasks/tools, or apt-get install kubernetes-client) and give it "
            "access to the cluster: kubectl get jobs must answer"
        ) from None
    except subprocess.TimeoutExpired:
        return KubectlOutput(code=1, out="", err=f"context deadline exceeded: no answer in {CALL_SECONDS:.0f} s")
    return KubectlOutput(code=done.returncode, out=done.stdout, err=done.stderr)


@dataclass(kw_only=True)
class Kubectl:
    """`kubectl` for one namespace of one cluster."""

    settings: KubernetesSettings
    program: str = "kubectl"
    call: Callable[[Sequence[str], str | None], KubectlOutput] = run_process
    pause: Callable[[float], None] = field(default=time.sleep)

    def run(self, *arguments: str, text: str | None = None) -> KubectlOutput:
        """Call it, again while the cluster is out of reach; every call is one that may be made twice."""
        context = ["--context", self.settings.context] if self.settings.context else []
        command = [self.program, *context, "--namespace", self.settings.namespace, *arguments]
        for number in range(TRIES):
            answer = self.call(command, text)
            if answer.code == 0 or not _mentions(answer.err, _OUT_OF_REACH):
                return answer
            if number < TRIES - 1:
                self.pause(PAUSE_SECONDS * 2**number)
        raise ClusterOutOfReachError(
            f"the Kubernetes API server does not answer ({TRIES} tries): {_last_line(answer.err)}\n"
            f"  kubectl {' '.join([*context, 'version'])} should answer; jobs that run are not affected"
        )

    def text(self, *arguments: str, text: str | None = None) -> str:
        """Return the output of a call, or raise an error with the cluster's words."""
        answer = self.run(*arguments, text=text)
        if answer.code != 0:
            raise failure(arguments, answer)
        return answer.out

    def items(self, *arguments: str) -> list[Mapping[str, Any]]:
        """The objects of `get ... --output json`."""
        document = json.loads(self.text("get", *arguments, "--output", "json"))
        items: list[Mapping[str, Any]] = document["items"] if document.get("kind", "").endswith("List") else [document]
        return items


def failure(arguments: Sequence[str], answer: KubectlOutput) -> StageError | UsageError:
    """Return the error of a failed call: what the cluster refused is the user's to change; anything else failed."""
    said = answer.err.strip() or answer.out.strip() or f"exit code {answer.code}"
    message = f"kubectl {' '.join(arguments[:2])}: {said}"
    return UsageError(message) if _mentions(said, _REFUSED) else StageError(message)


def lacks_kind(answer: KubectlOutput) -> bool:
    """Return True if the cluster does not have the kind of object that was asked for."""
    return _mentions(
        answer.err, ("doesn't have a resource type", "no matches for kind", "could not find the requested")
    )


def already_exists(answer: KubectlOutput) -> bool:
    """Return True if an object of that name is there."""
    return _mentions(answer.err, ("alreadyexists", "already exists"))


def _mentions(text: str, words: Sequence[str]) -> bool:
    plain = text.lower()
    return any(word in plain for word in words)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing was said"
