"""Servers that alerts are sent to: a webhook that keeps what is posted, a mail server that keeps its mail."""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword


@dataclass
class Webhook:
    """What has been posted, and what is answered."""

    url: str = ""
    posted: list[dict] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """Taken one after the other; 200 when there is none left."""
    location: str = ""
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, count, seconds=120):
        """Wait until so many have been taken."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.posted) >= count, timeout=seconds), self.posted


@contextmanager
def webhook():
    """A real HTTP server on a free port of this machine."""
    book = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with book.arrived:
                answer = book.answers.pop(0) if book.answers else 200
                book.paths.append(self.path)
                if answer == 200:
                    book.posted.append(body)
                book.arrived.notify_all()
            self.send_response(answer)
            if book.location:
                self.send_header("Location", book.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    book.url = f"http://127.0.0.1:{server.server_port}/hook/SECRET-PATH"
    try:
        yield book
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class MailServer:
    """What has been sent."""

    address: str = ""
    mails: list = field(default_factory=list)
    logins: list = field(default_factory=list)
    needs_login: bool = False
    refusals: int = 0
    """So many mails are refused for now."""

    async def handle_MAIL(self, server, session, envelope, address, options):
        """Serve only who has logged in, where a password is asked for."""
        if self.needs_login and not session.authenticated:
            return "530 log in first"
        envelope.mail_from = address
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        """Take a mail, or say that now is not the time."""
        if self.refusals:
            self.refusals -= 1
            return "451 try again later"
        self.mails.append(envelope)
        return "250 OK"


@contextmanager
def mail_server(*, password=None):
    """A real SMTP server on a free port of this machine; with a password, only who knows it is served."""
    book = MailServer(needs_login=password is not None)

    def authenticate(server, session, envelope, mechanism, data):
        assert isinstance(data, LoginPassword)
        book.logins.append(data.login.decode())
        return AuthResult(success=data.password.decode() == password)

    needs = {} if password is None else {"authenticator": authenticate, "auth_require_tls": False}
    controller = Controller(book, hostname="127.0.0.1", port=free_port(), **needs)
    controller.start()
    book.address = f"smtp://127.0.0.1:{controller.port}"
    try:
        yield book
    finally:
        controller.stop()


def free_port():
    """A port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
