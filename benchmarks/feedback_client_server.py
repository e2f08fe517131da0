"""The server that feedback_client.py measures clients against: the least that answers chat requests over HTTP.

    python feedback_client_server.py [--log FILE]

prints its port. Every reply is the same bytes but for its id, so that it takes as little of the machine as possible;
with `--log` it notes the time of every request.
"""

import asyncio
import json
import sys
import time

REPLY = {
    "object": "chat.completion",
    "created": 1,
    "model": "trivial-1",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": " A"},
            "logprobs": {
                "content": [
                    {
                        "token": " A",
                        "logprob": -0.25,
                        "bytes": [32, 65],
                        "top_logprobs": [
                            {"token": f" {letter}", "logprob": -0.25 - number, "bytes": [32, 65 + number]}
                            for number, letter in enumerate("ABCDE")
                        ],
                    }
                ]
            },
        }
    ],
    "usage": {"prompt_tokens": 200, "completion_tokens": 1, "total_tokens": 201},
}
BODY = json.dumps(REPLY).encode()
END = b"\r\n\r\n"


class Connection(asyncio.Protocol):
    """One client's connection: requests with a Content-Length, one after the other."""

    count = 0
    log: str | None = None

    def __init__(self) -> None:
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (head_end := self._got.find(END)) >= 0:
            head = self._got[:head_end].lower()
            place = head.find(b"content-length:")
            length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            request_end = head_end + len(END) + length
            if len(self._got) < request_end:
                return
            self._got = self._got[request_end:]
            self._answer()

    def _answer(self) -> None:
        Connection.count += 1
        if Connection.log is not None:
            with open(Connection.log, "a") as log:
                log.write(f"{time.time()}\n")
        body = b'{"id":"chatcmpl-%d",' % Connection.count + BODY[1:]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)  # type: ignore[attr-defined]


async def main() -> None:
    """Serve until killed."""
    if "--log" in sys.argv:
        Connection.log = sys.argv[sys.argv.index("--log") + 1]
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
