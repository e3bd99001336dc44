"""The two servers that the measured processes talk to, each in a process of its own: it shares no GIL with them.

    python -m benchmarks.capture_peers.servers api     the stub of a chat API that the tests use, without waiting
    python -m benchmarks.capture_peers.servers sink    takes what tracing libraries send, in their own protocols

The first line that each prints is its URL; it ends with its standard input. The sink answers at once, or after
`delay` seconds where that was asked for, and reads what it got only when it is asked what that was.
"""

import gzip
import json
import re
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from subprocess import PIPE, Popen
from typing import Any
from urllib.request import Request, urlopen

CALL_ID = re.compile(rb"echo: (call-[0-9a-f]{16})")
"""What the stub answers to a call of the kill test: found in whatever was stored of it."""


@contextmanager
def server(kind: str) -> Iterator[str]:
    """Start the server and give its URL; end it with the block."""
    process = Popen([sys.executable, "-m", __spec__.name, kind], stdin=PIPE, stdout=PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(10)


class Sink:
    """The benchmark's side of the sink."""

    def __init__(self, url: str) -> None:
        self.url = url

    def reset(self, delay: float = 0.0) -> None:
        """Forget what came; from now on take `delay` seconds for each request."""
        with urlopen(Request(f"{self.url}/control/reset", json.dumps({"delay": delay}).encode())):
            pass

    def received(self) -> dict[str, Any]:
        """`spans`: how many different ones came; `calls`: the ids of the kill test's calls found in them."""
        with urlopen(f"{self.url}/control/received") as answer:
            found: dict[str, Any] = json.load(answer)
            return found


class _SinkHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    delay = 0.0
    got: list[tuple[str, str, str, bytes]] = []  # noqa: RUF012 - one sink a process

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/control/received":
            return self._answer(read_received(self.got))
        return self._answer(_LANGSMITH_INFO if self.path == "/info" else {})

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/control/reset":
            type(self).delay = json.loads(body)["delay"]
            self.got.clear()
        else:
            headers = self.headers
            self.got.append((self.path, headers.get("content-encoding", ""), headers.get("content-type", ""), body))
            time.sleep(self.delay)
        if self.path.endswith("/v1/traces"):
            return self._send(b"", "application/x-protobuf")
        return self._answer({})

    do_PATCH = do_POST

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


# What LangSmith's own server says of itself: runs come in batches, compressed.
_LANGSMITH_INFO = {
    "version": "0.10.0",
    "batch_ingest_config": {
        "use_multipart_endpoint": True,
        "scale_up_qsize_trigger": 1000,
        "scale_up_nthreads_limit": 16,
        "scale_down_nempty_trigger": 4,
        "size_limit": 100,
        "size_limit_bytes": 20971520,
    },
    "instance_flags": {"zstd_compression_enabled": True},
}


def read_received(got: list[tuple[str, str, str, bytes]]) -> dict[str, Any]:
    spans: set[bytes] = set()
    calls: set[bytes] = set()
    for path, encoding, kind, body in list(got):
        data = _DECODERS[encoding](body)
        if path.endswith("/v1/traces"):
            spans.update(_otlp_spans(data))
        elif "multipart" in kind:  # LangSmith: a run is whole when its outputs came
            spans.update(re.findall(rb'name="(?:post|patch)\.([0-9a-f-]{36})\.outputs"', data))
        calls.update(CALL_ID.findall(data))
    return {"spans": len(spans), "calls": sorted(call.decode() for call in calls), "requests": len(got)}


def _unzstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
    "zstd": _unzstd,
}


def _otlp_spans(data: bytes) -> Iterator[bytes]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield span.trace_id + span.span_id


def _serve_api() -> None:
    from tests import stub_api

    stub_api._Handler.disable_nagle_algorithm = True  # or the kernel waits 40 ms between headers and body
    stub_api._Server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients are killed in mid-request
    with stub_api.serve() as api:
        api.requests = deque(maxlen=1)  # type: ignore[assignment]
        print(api.url, flush=True)
        sys.stdin.read()


def _serve_sink() -> None:
    running = ThreadingHTTPServer(("127.0.0.1", 0), _SinkHandler)
    running.daemon_threads = True
    threading.Thread(target=running.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{running.server_address[1]}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    {"api": _serve_api, "sink": _serve_sink}[sys.argv[1]]()
