"""The client for served models against the `openai` async client, per CPU second. The last line is one JSON object.

Both ask one trivial server process on this machine the same questions (`feedback_client_work.py`), with the same number
at once. Ours writes an intent before every request and the answer with its money after it, both flushed to disk
(SQLite, synchronous=FULL); the peer has a semaphore and keeps nothing. CPU seconds, user and system, are those of the
client's process, imports and the first requests left out. The sides take turns, so that a busy machine slows both; the
ratio is the median over turns of ours / theirs: below one, ours needs less.

`streamed`: prompts that go through the pool without ever being held together; memory is the peak of the whole process.
`resume`: a stage of records that lacks its last batch is run again by a new process. Time from the start of the
process, imports included, to the first new request at the server.

`--real-server URL --model NAME` measures that alone: wall time of both sides against a server that is there already,
vLLM say. A first turn, not counted, warms it, so that its prefix cache serves both sides alike.

The peer lives in an environment of its own under ~/.cache/charter-benchmarks, made when missing.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from feedback_client_work import TRIVIAL_MODEL

HERE = Path(__file__).resolve().parent
CHARTER = HERE.parent / ".venv" / "bin" / "python"
CACHE = Path.home() / ".cache" / "charter-benchmarks"
OPENAI = "3.52.0"
REQUIRED_RATIO, REQUIRED_RSS_BYTES, REQUIRED_RESUME_SECONDS = 0.7, 300e6, 2.0
CONCURRENCY = 64


def peer_python() -> Path:
    """The interpreter of an environment with the peer, made when it is not there."""
    home = CACHE / f"openai-{OPENAI}"
    python, ready = home / "bin" / "python", home / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True, stdout=sys.stderr)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, f"openai=={OPENAI}"], check=True, stdout=sys.stderr)
        ready.write_text(f"openai=={OPENAI}\n")
    return python


class Server:
    """The trivial server, in a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [str(CHARTER), str(HERE / "feedback_client_server.py"), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = self._process.stdout.readline().strip()
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def measured(*command: str) -> dict:
    """The output of a client's process."""
    done = subprocess.run([str(part) for part in command], cwd=HERE, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def both(turn: int, url: str, model: str, count: int) -> tuple[dict, dict]:
    """One turn of both sides, ours first in even ones."""
    arguments = (url, model, str(count), str(CONCURRENCY))
    with tempfile.TemporaryDirectory() as place:
        ours = (CHARTER, "feedback_client_ours.py", *arguments, place)
        theirs = (peer_python(), "feedback_client_peer.py", *arguments)
        if turn % 2:
            second = measured(*theirs)
            first = measured(*ours)
        else:
            first = measured(*ours)
            second = measured(*theirs)
    print(f"turn {turn + 1}: {json.dumps((first, second))}", file=sys.stderr, flush=True)
    return first, second


def compare_at(url: str, model: str, count: int, turns: int) -> dict:
    """Wall time of both sides against a server that is there already, after one turn that warms it."""
    both(1, url, model, count)
    pairs = [both(turn, url, model, count) for turn in range(turns)]
    ratios = [own["wall_s"] / other["wall_s"] for own, other in pairs]
    return {
        "wall_ratio": round(statistics.median(ratios), 3),
        "wall_ratios": [round(ratio, 3) for ratio in ratios],
        "charter_wall_s": round(statistics.median(own["wall_s"] for own, _ in pairs), 3),
        "openai_wall_s": round(statistics.median(other["wall_s"] for _, other in pairs), 3),
        "charter_cpu_s": round(statistics.median(own["cpu_s"] for own, _ in pairs), 3),
        "openai_cpu_s": round(statistics.median(other["cpu_s"] for _, other in pairs), 3),
        "requests": count,
        "concurrency": CONCURRENCY,
    }


def compare(count: int, turns: int) -> dict:
    """Both sides in turn."""
    pairs: list[tuple[dict, dict]] = []
    for turn in range(turns):
        with Server() as server:
            pairs.append(both(turn, server.url, TRIVIAL_MODEL, count))
    per_thousand = [[1000 * side["cpu_s"] / count for side in pair] for pair in pairs]
    ratios = sorted(own / other for own, other in per_thousand)
    walls = [pair[1]["wall_s"] / pair[0]["wall_s"] for pair in pairs]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "charter_cpu_s_per_1000": round(statistics.median(own for own, _ in per_thousand), 4),
        "openai_cpu_s_per_1000": round(statistics.median(other for _, other in per_thousand), 4),
        "times_as_many_requests_per_second": round(statistics.median(walls), 2),
        "requests": count,
    }


def stream(count: int) -> dict:
    """Many prompts through one process."""
    with tempfile.TemporaryDirectory() as place, Server() as server:
        done = measured(
            CHARTER, "feedback_client_ours.py", server.url, TRIVIAL_MODEL, str(count), str(CONCURRENCY), place
        )
    return {"prompts": count, "peak_rss_bytes": 1024 * done["rss_kib"], "wall_s": round(done["wall_s"], 1)}


def resume(count: int) -> dict:
    """A stage of so many records, stopped one batch before its end, and resumed by a new process."""
    with tempfile.TemporaryDirectory() as place:
        stage = (CHARTER, "feedback_client_stage.py")
        with Server() as server:
            measured(*stage, server.port, str(count), str(CONCURRENCY), place, "stop")
        log = Path(place) / "requests.log"
        with Server("--log", str(log)) as server:
            began = time.time()
            again = measured(*stage, server.port, str(count), str(CONCURRENCY), place, "resume")
        asked_at = [float(line) for line in log.read_text().split()]
    return {"records": count, "asked": again["requests"], "first_request_s": round(asked_at[0] - began, 3)}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers: does it run?")
    parser.add_argument("--requests", type=int, default=10_000, help="of each side in each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=1_000_000, help="to stream")
    parser.add_argument("--records", type=int, default=100_000, help="of the stage that is resumed")
    parser.add_argument("--real-server", metavar="URL", help="measure against this server only (http://host:port/v1)")
    parser.add_argument("--model", help="what that server calls its model")
    options = parser.parse_args()
    about = {
        "command": " ".join(["benchmarks/feedback_client.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "versions": {"openai": OPENAI, "python": platform.python_version()},
    }
    if options.real_server:
        if not options.model:
            parser.error("--real-server needs --model")
        compared = compare_at(options.real_server, options.model, options.requests, options.turns)
        print(json.dumps({"real_server": compared, **about}))
        return
    if options.quick:
        options.requests, options.turns, options.prompts, options.records = 1000, 1, 2000, 2000
    figures = compare(options.requests, options.turns)
    print(json.dumps(figures), file=sys.stderr, flush=True)
    streamed, resumed = stream(options.prompts), resume(options.records)
    result = {
        **figures,
        "streamed": streamed,
        "resume": resumed,
        "required": {
            "ratio": REQUIRED_RATIO,
            "peak_rss_bytes": REQUIRED_RSS_BYTES,
            "first_request_s": REQUIRED_RESUME_SECONDS,
        },
        "within_limits": figures["ratio"] <= REQUIRED_RATIO
        and streamed["peak_rss_bytes"] <= REQUIRED_RSS_BYTES
        and resumed["first_request_s"] <= REQUIRED_RESUME_SECONDS,
        **about,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
