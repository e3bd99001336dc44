"""The OpenAI-compatible API that agents call, in front of the router and the engine.

Every generation request is forwarded as it came, with the model's served name and a demand for token
ids and logprobs. Each choice of the answer becomes one `Completion`, handed to `record` before the
client has the end of that choice, so whatever an agent can act upon is already stored. The client gets
what it asked for and no more: the engine's extras are taken out again.

An answer names the version that made it, in `model` and in the header `x-art-version`. A stream that
the client leaves, or the engine breaks off, is recorded with what was sampled until then and the finish
reason `aborted`.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import httpx
import msgspec
from starlette import routing
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..capture.records import Completion, Record
from ..capture.rewards import make_record
from ..capture.spans import TRAJECTORY_HEADER
from ..errors import RewardError
from ..settings import get_settings
from .router import PolicyRouter, Route, UnknownModel

logger = logging.getLogger("art_sdk.backend.gateway")

VERSION_HEADER = "x-art-version"
"""Response header with the served name, for example `support@17`."""

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "bad_words",
    "allowed_token_ids",
    "response_format",
    "structured_outputs",
    "tool_choice",
    "use_beam_search",
)
"""The request's fields that shape what is sampled; those given are recorded."""

_TRAJECTORY = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})")
_FILE_PATH = re.compile(r"(?<![\w:/.])/(?:[\w.@+-]+/)+[\w.@+-]*")
_CLIENT_LEFT = 499

T = TypeVar("T")


def create_app(
    *,
    router: PolicyRouter,
    policies: Collection[str],
    record: Callable[[Record], None],
    api_key: str,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Starlette:
    """The ASGI application. Run it in the event loop that `router` is used in.

    Completions of `policy@version` are recorded for the names in `policies`; a model that was asked for
    by another name (the base model's own) is served and not recorded. `record` is called in the event
    loop and should only append. Clients show `api_key` as a Bearer token. `transport` replaces the network
    towards the engine.
    """
    http = httpx.AsyncClient(
        # An answer takes as long as it takes; a client that loses patience leaves, and that cancels the call.
        timeout=httpx.Timeout(None, connect=5.0),
        # The engine closes idle connections after 5 s; using one at that moment would fail the call.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0),
        transport=transport,
        trust_env=False,
    )
    gateway = _Gateway(router, frozenset(policies), record, http)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with http:
            yield

    return Starlette(
        routes=[
            routing.Route("/health", gateway.health),
            routing.Route("/v1/models", gateway.models),
            routing.Route("/v1/rewards", gateway.reward, methods=["POST"]),
            routing.Route("/v1/chat/completions", gateway.chat, methods=["POST"]),
            routing.Route("/v1/completions", gateway.complete, methods=["POST"]),
        ],
        middleware=[Middleware(_BearerAuth, api_key=api_key)],
        exception_handlers={HTTPException: _no_route, Exception: _own_failure},
        lifespan=lifespan,
    )


class RewardRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/rewards`, as the arguments of `art.reward`."""

    trajectory_id: str
    value: float
    name: str = "reward"
    span_id: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class _Call:
    """One generation request: what the client asked for, and what is recorded with its completions."""

    chat: bool
    wants_ids: bool
    wants_logprobs: bool
    sampling: dict[str, Any]
    served: str
    policy: str | None
    version: int
    trajectory_id: str | None
    span_id: str | None


@dataclass
class _Choice:
    """What the engine has sent of one choice until now."""

    prompt_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    recorded: bool = False


class _Gateway:
    def __init__(
        self,
        router: PolicyRouter,
        policies: frozenset[str],
        record: Callable[[Record], None],
        http: httpx.AsyncClient,
    ) -> None:
        self._router = router
        self._policies = policies
        self._record = record
        self._http = http

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "art", "root": self._router.live(name) or name}
            for name in self._router.names()
        ]
        return JSONResponse({"object": "list", "data": data})

    async def reward(self, request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await request.body(), type=RewardRequest)
            if asked.span_id is not None and not re.fullmatch("[0-9a-f]{16}", asked.span_id):
                raise RewardError(f"span_id must be 16 lower-case hex digits, got {asked.span_id!r}")
            given = make_record(
                asked.value, asked.trajectory_id, name=asked.name, span_id=asked.span_id, key=asked.key, source="http"
            )
        except (msgspec.DecodeError, RewardError) as error:
            return _error(400, f"this is no reward: {error}")
        self._record(given)
        return JSONResponse({"id": given.id, "trajectory_id": given.trajectory_id, "value": given.value})

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, "/chat/completions", chat=True)

    async def complete(self, request: Request) -> Response:
        return await self._generate(request, "/completions", chat=False)

    async def _generate(self, request: Request, path: str, *, chat: bool) -> Response:
        try:
            body = json.loads(await request.body(), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            return _error(400, f"the request's body is no JSON: {error}")
        if not isinstance(body, dict) or not isinstance(body.get("model"), str):
            return _error(400, "the request's body must be a JSON object with the model's name in 'model'", "model")
        if (wrong := _wrong_parameter(body, chat)) is not None:
            return _error(400, wrong[1], wrong[0])
        try:
            route = await self._router.pick(body["model"])
        except UnknownModel as error:
            return _error(404, str(error), "model", "model_not_found")

        call = self._call(request, body, route, chat)
        upstream = self._http.build_request(
            "POST",
            route.base_url + path,
            content=json.dumps(_engine_body(body, route.name, chat)),
            headers={
                "Authorization": f"Bearer {route.api_key}",
                "Content-Type": "application/json",
                # The response's id is made from this one and keys the completion: no client may choose it.
                "X-Request-Id": uuid.uuid4().hex,
            },
        )
        try:
            answer = await _while_connected(request, self._http.send(upstream, stream=bool(body.get("stream"))))
        except _ClientLeft:
            return Response(status_code=_CLIENT_LEFT)
        except httpx.HTTPError as error:
            logger.warning("the engine can't be reached: %r", error)
            return _engine_down(call)
        headers = {VERSION_HEADER: route.name}
        if answer.status_code != 200:
            await answer.aread()
            await answer.aclose()
            return _engine_error(answer, headers)
        if body.get("stream"):
            return _ClosingStream(self._relay(answer, call), headers=headers, media_type="text/event-stream")
        payload = answer.json()
        self._take(payload, call, {}, whole=True)
        _strip(payload, call)
        return JSONResponse(payload, headers=headers)

    def _call(self, request: Request, body: dict[str, Any], route: Route, chat: bool) -> _Call:
        policy, _, number = route.name.rpartition("@")
        is_policy = policy in self._policies and number.isdecimal()
        header = request.headers.get(TRAJECTORY_HEADER)
        matched = _TRAJECTORY.fullmatch(header or "")
        if header is not None and matched is None:
            logger.warning("header %s: expected <trace id>-<span id> in hex, got %r", TRAJECTORY_HEADER, header)
        logprobs = body.get("logprobs")
        return _Call(
            chat=chat,
            wants_ids=bool(body.get("return_token_ids")),
            # Completions take a number, and 0 asks for the sampled token's logprob.
            wants_logprobs=bool(logprobs) if chat else logprobs is not None,
            sampling={name: body[name] for name in SAMPLING if body.get(name) is not None},
            served=route.name,
            policy=policy if is_policy else None,
            version=int(number) if is_policy else 0,
            trajectory_id=matched[1] if matched else None,
            span_id=matched[2] if matched else None,
        )

    async def _relay(self, answer: httpx.Response, call: _Call) -> AsyncGenerator[bytes, None]:
        """The engine's events, stripped; records each choice before its last chunk goes out."""
        choices: dict[int, _Choice] = {}
        response_id = ""
        try:
            async for line in answer.aiter_lines():
                event = line.removeprefix("data:").strip()
                if event == line.strip():  # blank lines between events, and comments
                    continue
                if event == "[DONE]":
                    yield b"data: [DONE]\n\n"
                    continue
                chunk = json.loads(event)
                if "error" in chunk:
                    logger.error("the engine broke off a stream: %s", chunk["error"])
                    chunk = _error_body(500, "the engine failed while answering")
                else:
                    response_id = chunk["id"]
                    self._take(chunk, call, choices, whole=False)
                    if not _strip(chunk, call):
                        continue
                yield b"data: " + _dump(chunk) + b"\n\n"
        except httpx.HTTPError as error:
            logger.warning("the engine went away in the middle of a stream: %r", error)
            yield b"data: " + _dump(_error_body(503, "the engine went away while answering; try again")) + b"\n\n"
        finally:
            for index, choice in choices.items():
                self._keep(response_id, index, choice, "aborted", call)
            with anyio.CancelScope(shield=True):
                await answer.aclose()

    def _take(self, payload: dict[str, Any], call: _Call, choices: dict[int, _Choice], *, whole: bool) -> None:
        """Add an answer's or a chunk's tokens to `choices`; record those that are complete."""
        for sent in payload["choices"]:
            choice = choices.setdefault(sent["index"], _Choice())
            choice.prompt_ids = payload.get("prompt_token_ids") or sent.get("prompt_token_ids") or choice.prompt_ids
            token_ids = sent.get("token_ids") or []
            choice.token_ids += token_ids
            logprobs = sent.get("logprobs") or {}
            if call.chat:
                values = [token["logprob"] for token in logprobs.get("content") or []]
            else:
                values = logprobs.get("token_logprobs") or []
            choice.logprobs += values
            if whole or sent.get("finish_reason") is not None:
                self._keep(payload["id"], sent["index"], choice, sent.get("finish_reason"), call)

    def _keep(self, response_id: str, index: int, choice: _Choice, finish_reason: str | None, call: _Call) -> None:
        if call.policy is None or choice.recorded:
            return
        choice.recorded = True
        if not choice.prompt_ids or len(choice.logprobs) != len(choice.token_ids):
            logger.warning(
                "%s, choice %d: the engine sent %d prompt ids, %d token ids and %d logprobs; not recorded",
                response_id,
                index,
                len(choice.prompt_ids),
                len(choice.token_ids),
                len(choice.logprobs),
            )
            return
        if not choice.token_ids:
            return
        kept = get_settings().keeps_content  # token ids spell the words
        self._record(
            Completion(
                response_id=response_id,
                choice=index,
                policy=call.policy,
                version=call.version,
                prompt_ids=choice.prompt_ids if kept else [],
                token_ids=choice.token_ids if kept else [],
                logprobs=choice.logprobs if kept else [],
                sampling=call.sampling,
                finish_reason=finish_reason,
                created_at=time.time_ns(),
                trajectory_id=call.trajectory_id,
                span_id=call.span_id,
            )
        )


def _engine_body(body: dict[str, Any], served: str, chat: bool) -> dict[str, Any]:
    """The request as the engine gets it: the client's, with the served name, ids and logprobs."""
    asked = {key: value for key, value in body.items() if key != "request_id"}
    asked |= {"model": served, "return_token_ids": True}
    if chat:
        asked["logprobs"] = True
        if not body.get("logprobs"):
            asked["top_logprobs"] = 0
    elif body.get("logprobs") is None:
        asked["logprobs"] = 0
    return asked


def _wrong_parameter(body: dict[str, Any], chat: bool) -> tuple[str, str] | None:
    """A parameter that the gateway itself goes by and that has no right value, and what is wrong with it. All others
    are the engine's to judge."""
    for name in ("stream", "return_token_ids", *(("logprobs",) if chat else ("echo",))):
        if not isinstance(body.get(name), bool | None):
            return name, f"{name!r} must be true or false, got {json.dumps(body[name])[:80]}"
    if chat and body.get("top_logprobs") and not body.get("logprobs"):
        return "top_logprobs", "'top_logprobs' needs 'logprobs' to be true"
    if not chat and body.get("echo"):  # its logprobs of the prompt would be taken for the answer's
        return "echo", "'echo' is not supported: the prompt is yours already, put it before the answer"
    return None


def _strip(payload: dict[str, Any], call: _Call) -> bool:
    """Take out what only the gateway asked for; False for a chunk of which nothing is left."""
    payload["model"] = call.served
    if not call.wants_ids:
        payload.pop("prompt_token_ids", None)
    empty = call.chat and bool(payload["choices"])
    for choice in payload["choices"]:
        if not call.wants_ids:
            choice.pop("token_ids", None)
            choice.pop("prompt_token_ids", None)
        if not call.wants_logprobs:
            choice["logprobs"] = None
        empty &= choice.get("delta") == {} and choice.get("finish_reason") is None
    # The engine sends such chunks only to report ids and logprobs of tokens that show no text yet.
    return not empty or call.wants_ids or call.wants_logprobs or "usage" in payload


class _ClientLeft(Exception):
    """The client closed the connection before it was answered."""


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, with `_ClientLeft`, when the client disconnects."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _ClientLeft
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _ClosingStream(StreamingResponse):
    """Closes its generator however the response ends, so that an aborted stream is recorded at once."""

    def __init__(self, content: AsyncGenerator[bytes, None], **options: Any) -> None:
        super().__init__(content, **options)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._content):
            await super().__call__(scope, receive, send)


class _BearerAuth:
    """Lets through what carries the key, and `/health`."""

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                message = "the API key is missing or wrong: send it as 'Authorization: Bearer KEY' (OPENAI_API_KEY)"
                refusal = _error(401, message, code="invalid_api_key")
                refusal.headers["WWW-Authenticate"] = "Bearer"
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _engine_error(answer: httpx.Response, headers: dict[str, str]) -> Response:
    """The engine's refusal as the client may see it: its message for a bad request, nothing of its insides."""
    status = answer.status_code
    try:
        error = answer.json()["error"]
        message, parameter = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, parameter = "", None
    if status in (401, 403) or status >= 500 or not message or "Traceback" in message:
        logger.error("the engine answered %d: %s", status, answer.text[:2000])
        status, message, parameter = max(status, 500), "the engine failed on this request", None
    response = _error(status, _FILE_PATH.sub("<path>", message), parameter)
    response.headers.update(headers)
    return response


def _engine_down(call: _Call) -> Response:
    response = _error(503, f"the engine that serves {call.served} can't be reached; try again in a moment")
    response.headers[VERSION_HEADER] = call.served
    return response


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = _error(error.status_code, f"{error.detail}: {request.method} {request.url.path}")
    response.headers.update(error.headers or {})
    return response


async def _own_failure(request: Request, error: Exception) -> Response:
    return _error(500, "the gateway failed on this request; its log says why")


def _error(status: int, message: str, param: str | None = None, code: str | None = None) -> Response:
    return JSONResponse(_error_body(status, message, param, code), status_code=status)


def _error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    message = message.encode(errors="backslashreplace").decode()  # it may quote half a character of the request's
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


def _dump(payload: dict[str, Any]) -> bytes:
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
