"""The gateway records everything that was sampled and gives the client only what it asked for.

The engine is a stub that answers as vLLM does: three tokens a choice, ids and logprobs when asked.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from art_sdk.backend.gateway import create_app
from art_sdk.backend.router import PolicyRouter
from art_sdk.capture.records import Completion, Record, Reward
from art_sdk.settings import reset

KEY = {"Authorization": "Bearer client-key"}
TRAJECTORY = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
WORDS = ("Hello", " there", "!")
CHAT = {"model": "support", "messages": [{"role": "user", "content": "Hi"}]}


class StubEngine:
    """Answers as vLLM does, remembers what it was asked, and can be told to fail or to dawdle."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.fail: tuple[int, Any] | None = None
        self.pause = 0.0
        self.break_after: int | None = None
        self.left = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.complete, methods=["POST"]),
            ]
        )

    async def chat(self, request: Request) -> Response:
        return await self.answer(request, chat=True)

    async def complete(self, request: Request) -> Response:
        return await self.answer(request, chat=False)

    async def answer(self, request: Request, *, chat: bool) -> Response:
        body = await request.json()
        self.requests.append((body, dict(request.headers)))
        if self.fail is not None:
            return JSONResponse(self.fail[1], status_code=self.fail[0])
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{request.headers['x-request-id']}"
        if body.get("stream"):
            return StreamingResponse(self.stream(body, chat), media_type="text/event-stream")
        waiting = asyncio.ensure_future(asyncio.sleep(self.pause))
        leaving = asyncio.ensure_future(request.receive())
        await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if leaving.done():
            self.left.set()
        leaving.cancel()
        choices = [self.choice(body, i, chat, 0, 3, last=True, whole=True) for i in range(body.get("n", 1))]
        usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
        answer = {"id": self.id, "model": "base", "choices": choices, "usage": usage}
        return JSONResponse({**answer, "prompt_token_ids": [1, 2]} if chat else answer)

    async def stream(self, body: dict[str, Any], chat: bool) -> AsyncIterator[str]:
        n = body.get("n", 1)
        try:
            for i in range(n if chat else 0):
                role = {"index": i, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                yield self.event({"choices": [role], "prompt_token_ids": [1, 2]})
            for step in range(3):
                for i in range(n):
                    choice = self.choice(body, i, chat, step, step + 1, last=step == 2)
                    if not chat:
                        choice["prompt_token_ids"] = [1, 2] if step == 0 else None
                    yield self.event({"choices": [choice]})
                if chat and step == 0:
                    silent = {"index": 0, "delta": {}, "finish_reason": None, "token_ids": []}
                    yield self.event({"choices": [silent]})
                if self.break_after == step:
                    raise RuntimeError("broken off")
                await asyncio.sleep(self.pause)
            if (body.get("stream_options") or {}).get("include_usage"):
                yield self.event({"choices": [], "usage": {"total_tokens": 5}})
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.left.set()
            raise

    def event(self, chunk: dict[str, Any]) -> str:
        return f"data: {json.dumps({'id': self.id, 'model': 'base', **chunk})}\n\n"

    def choice(
        self, body: dict[str, Any], index: int, chat: bool, start: int, end: int, *, last: bool, whole: bool = False
    ) -> dict[str, Any]:
        assert body["return_token_ids"] is True
        text = "".join(WORDS[start:end])
        logprobs: dict[str, Any]
        if chat:
            assert body["logprobs"] is True
            logprobs = {"content": [{"token": WORDS[k], "logprob": -0.5 - k} for k in range(start, end)]}
            shown: dict[str, Any] = {"message" if whole else "delta": {"content": text}}
        else:
            assert body["logprobs"] >= 0
            logprobs = {"token_logprobs": [-0.5 - k for k in range(start, end)]}
            shown = {"text": text, **({"prompt_token_ids": [1, 2]} if whole else {})}
        return {
            "index": index,
            **shown,
            "logprobs": logprobs,
            "token_ids": [10 * index + k for k in range(start, end)],
            "finish_reason": "stop" if last else None,
        }


@contextlib.asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        await task


class Setting:
    """A gateway on a socket in front of the stub, and everything it recorded."""

    def __init__(self, engine: StubEngine, client: httpx.AsyncClient, records: list[Record], router: PolicyRouter):
        self.engine = engine
        self.client = client
        self.records = records
        self.router = router

    @property
    def completions(self) -> list[Completion]:
        return [record for record in self.records if isinstance(record, Completion)]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.records) < count:
                await asyncio.sleep(0.01)


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    engine = StubEngine()
    records: list[Record] = []
    async with serving(engine.app) as engine_url:
        router = PolicyRouter(engine_url, "engine-key")
        for name in ("support@0", "support@17", "tiny-base"):
            router.serve(name)
        router.flip("support", "support@17")
        app = create_app(router=router, policies={"support"}, record=records.append, api_key="client-key")
        async with serving(app) as url, httpx.AsyncClient(base_url=url, headers=KEY, timeout=10) as client:
            yield Setting(engine, client, records, router)


async def chunks(setting: Setting, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[dict[str, Any]]:
    async with setting.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_an_answer_is_recorded_and_stripped(setting: Setting) -> None:
    answer = await setting.client.post("/v1/chat/completions", json={**CHAT, "temperature": 0.7, "max_tokens": 5})
    body = answer.json()
    assert answer.headers["x-art-version"] == body["model"] == "support@17"
    assert body["choices"] == [
        {"index": 0, "message": {"content": "Hello there!"}, "logprobs": None, "finish_reason": "stop"}
    ]
    assert "prompt_token_ids" not in body
    assert body["usage"]["total_tokens"] == 5
    (completion,) = setting.completions
    assert completion.response_id == body["id"]
    assert (completion.policy, completion.version, completion.choice) == ("support", 17, 0)
    assert (completion.prompt_ids, completion.token_ids) == ([1, 2], [0, 1, 2])
    assert completion.logprobs == [-0.5, -1.5, -2.5]
    assert completion.sampling == {"temperature": 0.7, "max_tokens": 5}
    assert completion.finish_reason == "stop"
    assert completion.trajectory_id is None


async def test_without_content_no_tokens_are_kept(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_CAPTURE_CONTENT", "0")
    reset()
    try:
        answer = await setting.client.post("/v1/chat/completions", json=CHAT)
    finally:
        monkeypatch.undo()
        reset()
    assert answer.json()["choices"][0]["message"]["content"] == "Hello there!"
    (completion,) = setting.completions
    assert (completion.prompt_ids, completion.token_ids, completion.logprobs) == ([], [], [])
    assert completion.policy == "support"


async def test_each_choice_is_recorded(setting: Setting) -> None:
    await setting.client.post("/v1/chat/completions", json={**CHAT, "n": 2})
    assert [(c.choice, c.token_ids) for c in setting.completions] == [(0, [0, 1, 2]), (1, [10, 11, 12])]
    assert setting.completions[0].response_id == setting.completions[1].response_id


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_is_recorded_as_the_whole_answer_is(setting: Setting, n: int) -> None:
    whole = (await setting.client.post("/v1/chat/completions", json={**CHAT, "n": n})).json()
    sent = await chunks(setting, {**CHAT, "n": n})
    for i in range(n):
        deltas = [c["delta"] for chunk in sent for c in chunk["choices"] if c["index"] == i]
        assert "".join(delta.get("content", "") for delta in deltas) == whole["choices"][i]["message"]["content"]
    first, second = setting.completions[:n], setting.completions[n:]
    assert [(c.choice, c.prompt_ids, c.token_ids, c.logprobs, c.finish_reason) for c in first] == [
        (c.choice, c.prompt_ids, c.token_ids, c.logprobs, c.finish_reason) for c in second
    ]
    assert {chunk["model"] for chunk in sent} == {"support@17"}
    assert not any("prompt_token_ids" in chunk for chunk in sent)
    assert not any("token_ids" in c or c["logprobs"] for chunk in sent[n:] for c in chunk["choices"])
    assert not any(c["delta"] == {} for chunk in sent for c in chunk["choices"])


async def test_completions_are_served_whole_and_streamed(setting: Setting) -> None:
    prompt = {"model": "support@0", "prompt": "Hi", "n": 2}
    whole = (await setting.client.post("/v1/completions", json=prompt)).json()
    sent = await chunks(setting, prompt, "/v1/completions")
    assert [c["text"] for c in whole["choices"]] == ["Hello there!"] * 2
    assert "".join(c["text"] for chunk in sent for c in chunk["choices"] if c["index"] == 1) == "Hello there!"
    recorded = [(c.version, c.choice, c.prompt_ids, c.token_ids, c.logprobs) for c in setting.completions]
    expected = [(0, i, [1, 2], [10 * i, 10 * i + 1, 10 * i + 2], [-0.5, -1.5, -2.5]) for i in range(2)]
    assert recorded == expected * 2
    assert not any("token_ids" in c or "prompt_token_ids" in c for chunk in sent for c in chunk["choices"])


async def test_the_client_gets_ids_and_logprobs_when_it_asks(setting: Setting) -> None:
    wanted = {**CHAT, "return_token_ids": True, "logprobs": True, "top_logprobs": 2}
    body = (await setting.client.post("/v1/chat/completions", json=wanted)).json()
    assert setting.engine.requests[-1][0]["top_logprobs"] == 2
    assert body["prompt_token_ids"] == [1, 2]
    assert body["choices"][0]["token_ids"] == [0, 1, 2]
    assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5
    sent = await chunks(setting, wanted)
    assert [k for chunk in sent for c in chunk["choices"] for k in c.get("token_ids", [])] == [0, 1, 2]
    text = {"model": "support", "prompt": "Hi", "logprobs": 0}
    body = (await setting.client.post("/v1/completions", json=text)).json()
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [-0.5, -1.5, -2.5]


async def test_usage_in_a_stream_is_the_clients_choice(setting: Setting) -> None:
    assert not any("usage" in chunk for chunk in await chunks(setting, CHAT))
    assert "stream_options" not in setting.engine.requests[-1][0]
    sent = await chunks(setting, {**CHAT, "stream_options": {"include_usage": True}})
    assert sent[-1]["usage"] == {"total_tokens": 5}


async def test_the_request_reaches_the_engine_unchanged_but_for_what_is_ours(setting: Setting) -> None:
    messages = [
        {"role": "user", "content": "Häß \U0001f600"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
    ]
    body = {**CHAT, "messages": messages, "user": "u", "metadata": {"a": 1}, "request_id": "chosen"}
    headers = {"x-art-trajectory": f"{TRAJECTORY}-{SPAN}", "x-request-id": "chosen"}
    await setting.client.post("/v1/chat/completions", json=body, headers=headers)
    received, seen = setting.engine.requests[-1]
    ours = {"model": "support@17", "return_token_ids": True, "logprobs": True, "top_logprobs": 0}
    assert received == {**{k: v for k, v in body.items() if k != "request_id"}, **ours}
    assert seen["authorization"] == "Bearer engine-key"
    assert "x-art-trajectory" not in seen
    assert seen["x-request-id"] != "chosen"
    assert (setting.completions[0].trajectory_id, setting.completions[0].span_id) == (TRAJECTORY, SPAN)


async def test_a_malformed_trajectory_header_does_not_fail_the_call(setting: Setting) -> None:
    answer = await setting.client.post("/v1/chat/completions", json=CHAT, headers={"x-art-trajectory": "junk"})
    assert answer.status_code == 200
    assert setting.completions[0].trajectory_id is None


async def test_a_flip_is_seen_by_the_next_call(setting: Setting) -> None:
    setting.router.flip("support", "support@0")
    answer = await setting.client.post("/v1/chat/completions", json=CHAT)
    assert answer.json()["model"] == "support@0"
    assert setting.completions[0].version == 0


async def test_the_base_model_by_its_own_name_is_no_policys_completion(setting: Setting) -> None:
    answer = await setting.client.post("/v1/chat/completions", json={**CHAT, "model": "tiny-base"})
    assert answer.json()["model"] == answer.headers["x-art-version"] == "tiny-base"
    assert setting.records == []


async def test_a_stream_that_the_client_leaves_is_recorded_as_aborted_and_cancelled(setting: Setting) -> None:
    setting.engine.pause = 5
    async with setting.client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if "Hello" in line:
                break
    await setting.until(1)
    (completion,) = setting.completions
    assert (completion.token_ids, completion.logprobs, completion.finish_reason) == ([0], [-0.5], "aborted")
    await asyncio.wait_for(setting.engine.left.wait(), 5)


async def test_a_call_that_the_client_leaves_is_cancelled_at_the_engine(setting: Setting) -> None:
    setting.engine.pause = 5
    with pytest.raises(httpx.ReadTimeout):
        await setting.client.post("/v1/chat/completions", json=CHAT, timeout=0.3)
    await asyncio.wait_for(setting.engine.left.wait(), 3)
    assert setting.records == []


async def test_a_stream_that_the_engine_breaks_off_is_recorded_and_says_so(setting: Setting) -> None:
    setting.engine.break_after = 1
    async with setting.client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    assert "went away" in json.loads(lines[-1].removeprefix("data: "))["error"]["message"]
    assert setting.completions[0].token_ids == [0, 1]
    assert setting.completions[0].finish_reason == "aborted"


async def test_a_choice_is_recorded_before_its_last_chunk_is_sent(setting: Setting) -> None:
    async with setting.client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if '"finish_reason":"stop"' in line:
                assert len(setting.completions) == 1


@pytest.mark.parametrize("header", [None, "Bearer wrong", "client-key"])
async def test_every_route_but_health_wants_the_key(setting: Setting, header: str | None) -> None:
    headers = {"Authorization": header} if header else {}
    async with httpx.AsyncClient(base_url=setting.client.base_url, headers=headers) as stranger:
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("POST", "/v1/rewards")):
            refused = await stranger.request(method, path, json=CHAT)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
        assert (await stranger.get("/health")).status_code == 200
    assert setting.engine.requests == []


async def test_models_lists_policies_and_versions(setting: Setting) -> None:
    listed = (await setting.client.get("/v1/models")).json()["data"]
    assert {model["id"]: model["root"] for model in listed} == {
        "support": "support@17",
        "support@0": "support@0",
        "support@17": "support@17",
        "tiny-base": "tiny-base",
    }


async def test_an_unknown_model_is_404_and_lists_the_names(setting: Setting) -> None:
    answer = await setting.client.post("/v1/chat/completions", json={**CHAT, "model": "gpt-5"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "support, support@0, support@17, tiny-base" in answer.json()["error"]["message"]


NESTED = b'{"model": "support", "messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"messages": []}', b'{"model": 3}', b'{"model": NaN}', b"\xff", NESTED]
)
async def test_what_is_no_request_is_400(setting: Setting, body: bytes) -> None:
    answer = await setting.client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "given", "named"),
    [
        ("/v1/chat/completions", {"stream": "false"}, "stream"),
        ("/v1/chat/completions", {"stream": 1}, "stream"),
        ("/v1/chat/completions", {"logprobs": 5}, "logprobs"),
        ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"return_token_ids": "yes"}, "return_token_ids"),
        ("/v1/completions", {"stream": "true"}, "stream"),
        ("/v1/completions", {"echo": True}, "echo"),
        ("/v1/completions", {"echo": "no"}, "echo"),
    ],
)
async def test_a_parameter_that_the_gateway_goes_by_must_be_right(
    setting: Setting, path: str, given: dict[str, Any], named: str
) -> None:
    answer = await setting.client.post(path, json={"model": "support", "messages": [], "prompt": "Hi", **given})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == named
    assert f"'{named}'" in answer.json()["error"]["message"]
    assert setting.engine.requests == []


async def test_such_a_parameter_may_be_null_or_false(setting: Setting) -> None:
    body = {**CHAT, "stream": None, "logprobs": False, "top_logprobs": 0, "return_token_ids": False}
    assert (await setting.client.post("/v1/chat/completions", json=body)).status_code == 200
    body = {"model": "support", "prompt": "Hi", "echo": False, "logprobs": 0}
    assert (await setting.client.post("/v1/completions", json=body)).status_code == 200


async def test_half_a_character_in_a_models_name_is_a_name_that_is_not_known(setting: Setting) -> None:
    answer = await setting.client.post("/v1/chat/completions", content=b'{"model": "\\ud800", "messages": []}')
    assert answer.status_code == 404
    assert "\\ud800" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405)]
)
async def test_a_route_that_is_not_there_is_an_error_in_the_apis_form(
    setting: Setting, method: str, path: str, status: int
) -> None:
    answer = await setting.client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert path in answer.json()["error"]["message"]
    assert ("allow" in answer.headers) == (status == 405)


async def test_a_fault_of_the_gateways_own_is_500_in_the_apis_form(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: PolicyRouter, name: str) -> None:
        raise RuntimeError("secret insides")

    monkeypatch.setattr(PolicyRouter, "pick", broken)
    answer = await setting.client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text


async def test_an_engine_that_is_down_is_503(setting: Setting) -> None:
    router = PolicyRouter("http://127.0.0.1:9", "engine-key")
    router.serve("support@0")
    app = create_app(router=router, policies={"support"}, record=setting.records.append, api_key="client-key")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", headers=KEY) as client:
        answer = await client.post("/v1/chat/completions", json={**CHAT, "model": "support@0"})
    assert answer.status_code == 503
    assert "support@0 can't be reached" in answer.json()["error"]["message"]
    assert "127.0.0.1" not in answer.text


async def test_a_refusal_of_the_engine_passes_with_its_message(setting: Setting) -> None:
    error = {"message": "temperature must be non-negative", "param": "temperature", "code": 400}
    setting.engine.fail = (400, {"error": error})
    answer = await setting.client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "temperature must be non-negative"
    assert answer.json()["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    "failure",
    [
        (500, {"error": {"message": 'Traceback (most recent call last): File "/opt/engine/worker.py", line 3'}}),
        (500, {"error": {"message": "no tensors in /srv/versions/17"}}),
        (401, {"error": "Unauthorized"}),
        (502, []),
    ],
)
async def test_a_failure_of_the_engine_shows_none_of_its_insides(setting: Setting, failure: tuple[int, Any]) -> None:
    setting.engine.fail = failure
    answer = await setting.client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code >= 500
    assert answer.json()["error"]["message"] == "the engine failed on this request"


async def test_paths_are_taken_out_of_a_refusal(setting: Setting) -> None:
    setting.engine.fail = (404, {"error": {"message": "no adapter in /srv/art/versions/17 was found"}})
    answer = await setting.client.post("/v1/chat/completions", json=CHAT)
    assert answer.json()["error"]["message"] == "no adapter in <path> was found"


async def test_a_reward_is_recorded(setting: Setting) -> None:
    body = {"trajectory_id": TRAJECTORY, "value": 1, "name": "csat", "span_id": SPAN}
    answer = await setting.client.post("/v1/rewards", json=body)
    assert answer.status_code == 200
    (reward,) = setting.records
    assert isinstance(reward, Reward)
    assert answer.json()["id"] == reward.id
    assert (reward.trajectory_id, reward.span_id, reward.name, reward.value) == (TRAJECTORY, SPAN, "csat", 1.0)


async def test_the_same_key_gives_the_same_reward_id(setting: Setting) -> None:
    body = {"trajectory_id": TRAJECTORY, "value": 1.0}
    ids = [
        (await setting.client.post("/v1/rewards", json={**body, **key})).json()["id"]
        for key in ({"key": "ticket-81"}, {"key": "ticket-81"}, {"key": "ticket-82"}, {}, {})
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"value": 1}',
        b'{"trajectory_id": "zz", "value": 1}',
        b'{"trajectory_id": "0af7651916cd43dd8448eb211c80319c", "value": NaN}',
        b'{"trajectory_id": "0af7651916cd43dd8448eb211c80319c", "value": 1e999}',
        b'{"trajectory_id": "0af7651916cd43dd8448eb211c80319c", "value": "1"}',
        b'{"trajectory_id": "0af7651916cd43dd8448eb211c80319c", "value": 1, "span_id": "7"}',
        b'{"trajectory_id": "0af7651916cd43dd8448eb211c80319c", "value": 1, "keys": "typo"}',
    ],
)
async def test_what_is_no_reward_is_400_and_recorded_nowhere(setting: Setting, body: bytes) -> None:
    answer = await setting.client.post("/v1/rewards", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("this is no reward: ")
    assert setting.records == []
