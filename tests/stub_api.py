"""A stub of the OpenAI and Anthropic APIs: a real HTTP server on 127.0.0.1, in a thread.

What it answers depends on the request alone, so that any number of clients can use it at once:

    the last message says            the answer
    "weather in Rome and Oslo"       with `tools` in the request: a tool call `get_weather` for each city
    (a tool's result)                "It is <result>" for each result, joined
    "fail"                           HTTP 500
    "flaky NAME"                     HTTP 500 the first time for each NAME, then an answer
    "hang up NAME"                   the connection dropped the first time for each NAME, then an answer
    "break"                          a stream that ends with the server's error event
    "think"                          reasoning, then an answer
    "say hello"                      spoken: an answer with `audio` (chat completions)
    "cut"                            half an answer, then the connection is dropped
    "long"                           2,000 words, slowly
    anything else                    "echo: " and the message

A model whose name ends in "gzip" answers compressed; one named `policy@3` is a gateway's. A request to
`/moved?to=URL` is redirected there (307).
"""

import gzip
import itertools
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: Body


@dataclass
class StubApi:
    """`url` is the base of the paths (`{url}/v1/chat/completions`); `requests` what came, in order."""

    url: str
    requests: list[Request] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"


@contextmanager
def serve() -> Iterator[StubApi]:
    """Serve until the block ends."""
    server = _Server(("127.0.0.1", 0), _Handler)
    api = StubApi(f"http://127.0.0.1:{server.server_address[1]}")
    server.api = api  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that left is no fault of the stub
            super().handle_error(request, client_address)


_ids = itertools.count(1)


@dataclass
class _Answer:
    text: str | None = None
    cities: tuple[str, ...] = ()
    words_wait: float = 0.0
    cut: bool = False
    breaks: bool = False
    thought: str = ""
    spoken: bool = False


def _answer(said: str, results: list[str], has_tools: bool) -> _Answer:
    if results:
        return _Answer("It is " + " and ".join(results))
    if said == "long":
        return _Answer(" ".join(f"w{n}" for n in range(2000)), words_wait=0.005)
    if said == "cut":
        return _Answer("one two three four", cut=True)
    if said == "break":
        return _Answer("one two three", breaks=True)
    if said == "think":
        return _Answer("echo: think", thought="let me see")
    if said == "say hello":
        return _Answer(None, spoken=True)
    if has_tools and (found := re.findall(r"[A-Z]\w+", said.partition("weather in")[2])):
        return _Answer(None, tuple(found))
    return _Answer(f"echo: {said}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        api: StubApi = self.server.api  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        api.requests.append(Request(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        if path == "/moved":
            self._start(307, "text/plain", {"location": self.path.partition("?to=")[2], "content-length": "0"})
            return None
        said, results = _last(path, body)
        if said == "fail" or (said.startswith("flaky") and said not in api.seen):
            api.seen.add(said)
            return self._send(500, {"error": {"message": "the stub fails", "type": "server_error"}}, body)
        if said.startswith("hang up") and said not in api.seen:
            api.seen.add(said)
            self.close_connection = True
            return None
        answer = _answer(said, results, bool(body.get("tools")))
        kind = path.rpartition("/v1")[2]
        events = {"/chat/completions": _chat, "/completions": _text, "/responses": _responses, "/messages": _anthropic}
        if kind not in events or "model" not in body:
            return self._send(200, {"path": path, "echo": body}, body)
        whole, stream = events[kind](body, answer)
        try:
            if body.get("stream"):
                self._stream(stream, answer, named=kind in ("/responses", "/messages"))
            elif answer.cut:
                data = json.dumps(whole).encode()
                self._start(200, "application/json", {"content-length": str(len(data))})
                self.wfile.write(data[:20])
                self.close_connection = True
            else:
                self._send(200, whole, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        return None

    def _start(self, status: int, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, status: int, answer: Body, body: Body) -> None:
        data, headers = json.dumps(answer).encode(), dict[str, str]()
        if str(body.get("model", "")).endswith("gzip"):
            data, headers = gzip.compress(data), {"content-encoding": "gzip"}
        if status >= 500:
            headers["retry-after-ms"] = "1"
        self._start(status, "application/json", {**headers, "content-length": str(len(data))})
        self.wfile.write(data)

    def _stream(self, events: list[Body | str], answer: _Answer, *, named: bool) -> None:
        self._start(200, "text/event-stream", {"transfer-encoding": "chunked"})
        for number, event in enumerate(events):
            if answer.cut and number == len(events) // 2:
                self.close_connection = True
                return
            data = event if isinstance(event, str) else json.dumps(event)
            line = f"event: {event['type']}\n" if named and isinstance(event, dict) else ""
            chunk = f"{line}data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
            time.sleep(answer.words_wait)
        self.wfile.write(b"0\r\n\r\n")


def _last(path: str, body: Body) -> tuple[str, list[str]]:
    """What the last message says, or the tools' results that it brings."""
    if "prompt" in body:
        prompt = body["prompt"]
        return (prompt if isinstance(prompt, str) else prompt[-1]), []
    given = body.get("messages", body.get("input", ""))
    if isinstance(given, str):
        return given, []
    results: list[str] = []
    for message in reversed(given):
        if message.get("role") == "tool":
            results.insert(0, str(message["content"]))
        elif message.get("type") == "function_call_output":
            results.insert(0, str(message["output"]))
        elif (
            isinstance(content := message.get("content"), list) and content and content[0].get("type") == "tool_result"
        ):
            results = [_text_of(part["content"]) for part in content]
        else:
            break
    return ("" if results or not given else _text_of(given[-1].get("content"))), results


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content or "")


def _pieces(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def _calls(answer: _Answer) -> list[tuple[str, str]]:
    return [(f"call_{city.lower()}", json.dumps({"city": city})) for city in answer.cities]


_USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def _chat(body: Body, answer: _Answer) -> tuple[Body, list[Body | str]]:
    identity = {"id": f"chatcmpl-{next(_ids)}", "created": 1, "model": body["model"]}
    calls = [
        {"id": call, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        for call, arguments in _calls(answer)
    ]
    message: Body = {"role": "assistant", "content": answer.text} | ({"tool_calls": calls} if calls else {})
    message |= {"reasoning_content": answer.thought} if answer.thought else {}
    audio = {"id": "audio_1", "data": "UklGRg==" * 1000, "expires_at": 2_000_000_000, "transcript": "hello"}
    message |= {"audio": audio} if answer.spoken else {}
    finish = "tool_calls" if calls else "stop"
    choices = [{"index": n, "message": message, "finish_reason": finish} for n in range(body.get("n") or 1)]
    whole = identity | {"object": "chat.completion", "choices": choices, "usage": _USAGE}

    def chunk(delta: Body, reason: str | None = None, index: int = 0) -> Body:
        choice = {"index": index, "delta": delta, "finish_reason": reason}
        return identity | {"object": "chat.completion.chunk", "choices": [choice]}

    stream: list[Body | str] = [chunk({"role": "assistant", "content": "" if answer.text else None})]
    stream += [chunk({"reasoning_content": piece}) for piece in _pieces(answer.thought)]
    if answer.spoken:
        parts: tuple[Body, ...] = ({"id": "audio_1", "transcript": "hel"}, {"data": "UklGRg==", "transcript": "lo"})
        stream += [chunk({"audio": part}) for part in (*parts, {"expires_at": 2_000_000_000})]
    also = range(1, body.get("n") or 1)  # the other choices, interleaved
    for piece in _pieces(answer.text or ""):
        stream += [chunk({"content": piece}), *(chunk({"content": piece}, index=index) for index in also)]
    for index, call in enumerate(calls):  # names first, then the arguments of all calls interleaved
        head = call | {"index": index, "function": {"name": "get_weather", "arguments": ""}}
        stream.append(chunk({"tool_calls": [head]}))
    halves = [
        (i, half)
        for part in (0, 1)
        for i, (_, a) in enumerate(_calls(answer))
        for half in [a[:5] if not part else a[5:]]
    ]
    stream += [chunk({"tool_calls": [{"index": i, "function": {"arguments": half}}]}) for i, half in halves]
    if answer.breaks:
        return whole, [*stream, {"error": {"message": "the stub breaks", "type": "server_error"}}]
    stream += [chunk({}, finish, index) for index in (0, *also)]
    if (body.get("stream_options") or {}).get("include_usage"):
        stream.append(identity | {"object": "chat.completion.chunk", "choices": [], "usage": _USAGE})
    return whole, [*stream, "[DONE]"]


def _text(body: Body, answer: _Answer) -> tuple[Body, list[Body | str]]:
    identity = {"id": f"cmpl-{next(_ids)}", "object": "text_completion", "created": 1, "model": body["model"]}
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]

    def choice(text: str, index: int = 0, reason: str | None = None) -> Body:
        return {"index": index, "text": text, "finish_reason": reason, "logprobs": None}

    whole = identity | {
        "choices": [choice(f"echo: {prompt}", n, "stop") for n, prompt in enumerate(prompts)],
        "usage": _USAGE,
    }
    pieces = _pieces(answer.text or "")
    stream: list[Body | str] = [identity | {"choices": [choice(piece)]} for piece in pieces]
    return whole, [*stream, identity | {"choices": [choice("", 0, "stop")]}, "[DONE]"]


def _responses(body: Body, answer: _Answer) -> tuple[Body, list[Body | str]]:
    number = next(_ids)
    base = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": body["model"],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
    }
    text = {"type": "output_text", "text": answer.text, "annotations": []}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    calls = [
        {"id": f"fc_{call}", "type": "function_call", "call_id": call, "name": "get_weather", "arguments": arguments}
        for call, arguments in _calls(answer)
    ]
    thought = {"type": "summary_text", "text": answer.thought}
    reasoning = [{"id": f"rs_{number}", "type": "reasoning", "summary": [thought]}] if answer.thought else []
    output: list[Body] = [*reasoning, *(calls or [message])]
    usage = {
        "input_tokens": 7,
        "output_tokens": 5,
        "total_tokens": 12,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens_details": {"reasoning_tokens": 1},
    }
    whole = base | {"status": "completed", "output": output, "usage": usage}
    begun = base | {"status": "in_progress", "output": []}
    stream: list[Body | str] = []

    def event(kind: str, **more: Any) -> None:
        stream.append({"type": kind, "sequence_number": len(stream), **more})

    event("response.created", response=begun)
    for index, item in enumerate(output):
        empty = {"content": [], "arguments": ""} | ({"summary": []} if item["type"] == "reasoning" else {})
        event("response.output_item.added", output_index=index, item=item | empty)
        where = {"item_id": item["id"], "output_index": index}
        if item["type"] == "reasoning":
            for piece in _pieces(answer.thought):
                event("response.reasoning_summary_text.delta", **where, summary_index=0, delta=piece)
        elif item["type"] == "message":
            event("response.content_part.added", **where, content_index=0, part=text | {"text": ""})
            for piece in _pieces(answer.text or ""):
                event("response.output_text.delta", **where, content_index=0, delta=piece, logprobs=[])
        else:
            for half in (item["arguments"][:5], item["arguments"][5:]):
                event("response.function_call_arguments.delta", **where, delta=half)
        if answer.breaks:
            event("error", code="server_error", message="the stub breaks", param=None)
            return whole, stream
        event("response.output_item.done", output_index=index, item=item)
    event("response.completed", response=whole)
    return whole, stream


def _anthropic(body: Body, answer: _Answer) -> tuple[Body, list[Body | str]]:
    blocks: list[Body] = []
    if answer.thought:
        blocks.append({"type": "thinking", "thinking": answer.thought, "signature": "c2lnbmVk"})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    blocks += [
        {"type": "tool_use", "id": call, "name": "get_weather", "input": json.loads(arguments)}
        for call, arguments in _calls(answer)
    ]
    reason = "tool_use" if answer.cities else "end_turn"
    usage = {"input_tokens": 7, "output_tokens": 5}
    base = {"id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": body["model"]}
    whole = base | {"content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": usage}
    begun = base | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage | {"output_tokens": 1}}
    stream: list[Body | str] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(blocks):
        empties: dict[str, Body] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
        empty = empties.get(block["type"], {"input": {}})
        stream.append({"type": "content_block_start", "index": index, "content_block": block | empty})
        if block["type"] == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(answer.text or "")]
        elif block["type"] == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(answer.thought)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            written = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": half} for half in (written[:5], written[5:])]
        stream += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        if answer.breaks:
            broken = {"type": "error", "error": {"type": "api_error", "message": "the stub breaks"}}
            return whole, [*stream, broken]
        stream.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": reason, "stop_sequence": None}
    stream.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}})
    return whole, [*stream, {"type": "message_stop"}]
