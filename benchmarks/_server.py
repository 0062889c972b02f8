"""A slow server of one file over HTTP, with ranges, on this machine: what it sends is counted.

`/name/m.safetensors` is the same file under every name, by which requests and bytes are counted.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What is wrong with the answer to a request, by the name in its path, the first byte and how often
# it has come: "drop", "missing", "short", "cut", "elsewhere", "whole", or nothing.
Fault = Callable[[str, int, int], str | None]

_PART = 64 * 1024


class Server:
    """Answers with ranges of `data`, or of what `more` has for the end of the path.

    Each request takes `delay` seconds, and all together at most `rate` bytes a second.
    """

    def __init__(
        self,
        data: bytes,
        delay: float = 0.02,
        rate: float = 100e6,
        fault: Fault = lambda name, start, number: None,
        more: Mapping[str, bytes] | None = None,
    ) -> None:
        self.requests: Counter[str] = Counter()
        self.nbytes: Counter[str] = Counter()
        self.headers: dict[str, str] = {}  # of the last request
        seen: Counter[tuple[str, int]] = Counter()
        whole = data
        lock, wire = threading.Lock(), threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is said of each request."""

            def do_HEAD(self) -> None:
                self.answer(False)

            def do_GET(self) -> None:
                self.answer(True)

            def answer(self, wanted: bool) -> None:
                data = (more or {}).get(self.path.rpartition("/")[2], whole)
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                start, stop = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(data))
                name = self.path.split("/")[1]
                with lock:
                    owner.headers = dict(self.headers)
                    owner.requests[name] += 1
                    number = seen[name, start if asked else -1]
                    seen[name, start if asked else -1] += 1
                time.sleep(delay)
                what = fault(name, start if asked else -1, number)
                if what == "drop":
                    self.close_connection = True
                    return
                if what == "missing":
                    self.send_error(404)
                    return
                if what == "short":  # fewer bytes than were asked for, and so says the answer
                    stop = (start + stop) // 2
                if what == "elsewhere":
                    start, stop = start - 8, stop - 8
                if what == "whole":
                    asked, start, stop = None, 0, len(data)
                self.send_response(206 if asked else 200)
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(stop - start))
                if asked:
                    self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
                self.end_headers()
                if what == "cut":  # fewer than the answer says
                    self.close_connection = True
                    stop = (start + stop) // 2
                for at in range(start, stop if wanted else start, _PART):
                    part = data[at : min(at + _PART, stop)]
                    with wire:
                        time.sleep(len(part) / rate)
                    self.wfile.write(part)
                    with lock:
                        owner.nbytes[name] += len(part)

        owner = self

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that went away is none of ours."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def url(self, name: str) -> str:
        """The file under a name."""
        return f"http://127.0.0.1:{self._server.server_port}/{name}/m.safetensors"

    @contextlib.contextmanager
    def running(self) -> Generator[Server]:
        """Answers for as long as the block lasts."""
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
