"""`charter ui` as a process: its address, its stream of changes, raw requests, TLS, its end."""

import contextlib
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import forks
import pytest
from dashboard_case import lively
from dashboard_server import Server, next_version

from charter.dashboard.reading import key_of


@pytest.fixture
def start():
    servers = []

    def one(*arguments, **environment):
        servers.append(Server(*arguments, **environment))
        return servers[-1]

    yield one
    for server in servers:
        server.close()


@pytest.fixture
def case(tmp_path):
    return lively(tmp_path / "work" / "demo", pid=os.getpid())


def raw(port, request, *, silence_seconds):
    """Send bytes, and give what comes back until the server closes or says nothing for a while."""
    parts = []
    with (
        socket.create_connection(("127.0.0.1", port), timeout=silence_seconds) as sent,
        contextlib.suppress(TimeoutError, OSError),
    ):
        sent.sendall(request)
        while part := sent.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_a_token_of_its_own_at_every_start(start, case):
    first, second = start(case.root), start(case.root)
    assert first.token != second.token
    assert len(first.token) >= 40
    assert first.host == "127.0.0.1"
    answer, _ = second.ask("/", cookie=first.sign_in())
    assert answer.status == 401


RAW_PATHS = (
    "/../../../../etc/passwd", "/assets/../../../../../../etc/passwd", "/p/..", "/./", "//etc/passwd", "/p//", "*",
)  # fmt: skip
STRANGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n",
]


def test_raw_paths_and_strange_requests_lead_nowhere_and_do_no_harm(start, case):
    server = start(case.root)
    cookie = server.sign_in()
    for path in RAW_PATHS:
        lines = (f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", f"Cookie: {cookie}", "Connection: close")
        answer = raw(server.port, "\r\n".join([*lines, "", ""]).encode(), silence_seconds=120)
        assert answer.split()[1] in (b"404", b"400"), (path, answer[:200])
        assert b"root:" not in answer
    for request in STRANGE:
        answer = raw(server.port, request, silence_seconds=5)  # to some of these it need say nothing
        assert not answer or answer.split()[1][:1] == b"4", (request[:80], answer[:200])
    assert server.ask("/", cookie=cookie)[0].status == 200


def test_a_change_is_told_by_the_stream(start, case):
    server = start(case.root)
    cookie = server.sign_in()
    key = key_of(case.root.resolve())
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("GET", f"/live?project={key}", headers={"Cookie": cookie})
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    first = next_version(answer)
    case.progress("pm", 15, 20)
    assert next_version(answer) != first
    connection.close()
    assert server.ask("/live?project=unknown", cookie=cookie)[0].status == 404


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_asked_with_a_stream_open(start, case, how):
    server = start(case.root)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("GET", "/live", headers={"Cookie": server.sign_in()})
    answer = connection.getresponse()
    next_version(answer)
    server.process.send_signal(how)
    assert server.process.wait(120) in (0, 130, -how)
    assert "Traceback" not in server.process.stderr.read()
    answer.close()
    connection.close()


def test_only_loopback_is_listened_to(start, case):
    """What the kernel says: the address that the socket is bound to is 127.0.0.1 and no other."""
    server = start(case.root)
    mark = f":{server.port:04X}"
    table = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    listening = {words[1] for line in table if (words := line.split())[3] == "0A" and words[1].endswith(mark)}
    assert listening == {f"0100007F{mark}"}


def test_tls_beyond_loopback(start, case, tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*make, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    options = ("--host", "0.0.0.0", "--name", "localhost", "--tls-certificate", certificate, "--tls-key", key)
    server = start(case.root, *options)
    assert server.scheme == "https"
    trusted = ssl.create_default_context(cafile=certificate)
    connection = http.client.HTTPSConnection("localhost", server.port, context=trusted, timeout=120)
    connection.request("GET", f"/?token={server.token}")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    assert "Secure" in answer.headers["set-cookie"]
    assert "max-age" in answer.headers["strict-transport-security"]
    connection.close()


def test_a_token_by_reference_is_not_in_the_process_list(start, case):
    token = "a-token-that-was-chosen-0123456789-abc"
    server = start(case.root, "--token", "env:CHOSEN_TOKEN", CHOSEN_TOKEN=token)
    assert server.token == token
    with open(f"/proc/{server.process.pid}/cmdline", "rb") as file:
        assert token.encode() not in file.read()


def test_a_port_that_is_taken_is_said(case):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [
            sys.executable,
            "-m",
            "charter.cli.main",
            "ui",
            str(case.root),
            "--port",
            str(taken.getsockname()[1]),
        ]
        ended = forks.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 2
    assert "give another --port" in ended.stderr


def test_without_the_extra_it_says_what_to_install(case):
    code = (
        "import sys\nsys.modules['starlette'] = None\nsys.modules['uvicorn'] = None\n"
        f"sys.argv = ['charter', 'ui', {str(case.root)!r}, '--port', '0']\nfrom charter.cli.main import entry\nentry()"
    )
    ended = forks.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 7, ended.stderr
    assert "pip install '.[ui]'" in ended.stderr
