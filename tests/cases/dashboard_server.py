"""`charter ui` as a process: its address, requests with and without a session, its stream of changes, its end."""

import http.client
import json
import os
import re
import subprocess
import sys
import time

import forks

ADDRESS = re.compile(r"Dashboard: (https?)://(\S+):(\d+)/\?token=(\S+)")

SECONDS = 300
"""Ends a test that hangs; nothing is measured by it."""


class Server:
    """A running dashboard."""

    def __init__(self, *arguments, **environment):
        command = [sys.executable, "-m", "charter.cli.main", "ui", *map(str, arguments), "--port", "0"]
        self.process = forks.Process(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.line = self.process.stdout.readline()
        found = ADDRESS.match(self.line)
        if found:
            self.scheme, self.host, self.port, self.token = found[1], found[2], int(found[3]), found[4]

    def ask(self, path, *, method="GET", cookie=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers={**given, **({"Cookie": cookie} if cookie else {})})
        answer = connection.getresponse()
        content = answer.read().decode()
        connection.close()
        return answer, content

    def sign_in(self):
        answer, _ = self.ask(f"/?token={self.token}")
        return answer.headers["set-cookie"].partition(";")[0]

    def close(self):
        """End it; what it has printed since its address, and its errors."""
        self.process.kill()
        return self.process.communicate(timeout=SECONDS)


def next_version(answer):
    """The next version that a stream tells."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        line = answer.readline().decode()
        assert line, "the stream has ended"
        if line.startswith("data: "):
            return json.loads(line[6:])["version"]
    raise AssertionError("the stream told nothing")
