"""Spans of other frameworks become ours, each call once; the user's tracing is left as it is."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult
from opentelemetry.trace import StatusCode
from stub_api import StubApi

import art_sdk as art
from art_sdk.capture import guard, spans
from art_sdk.integrations import otel
from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory

Captured = Callable[[], Trajectory]
Calls = Callable[[], list[Span]]

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get_weather"}
AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "desk"}
SAID = '[{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]'


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    yield
    assert otel._processor._open == {}


@pytest.fixture
def provider(home: Any) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    otel.install(provider)
    return provider


@pytest.fixture
def tracer(provider: TracerProvider) -> trace.Tracer:
    return provider.get_tracer("mine")


@pytest.fixture
def client(api: StubApi) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=api.openai_url, api_key="x", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, words: str = "hi") -> Any:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": words}])


def tree(run: Trajectory) -> list[tuple[str, str | None]]:
    names = {span.span_id: span.name for span in run.spans}
    return [(span.name, names.get(span.parent_id or "")) for span in run.spans[1:]]


# Where spans belong


def test_an_agents_tools_and_calls_are_inside_it(
    tracer: trace.Tracer, client: openai.OpenAI, captured: Captured
) -> None:
    @art.trajectory(name="run")
    def handle() -> None:
        with tracer.start_as_current_span("agent", attributes=AGENT):
            ask(client)
            with tracer.start_as_current_span("tool", attributes=TOOL):
                ask(client)
        ask(client)

    handle()
    assert tree(captured()) == [
        ("invoke_agent desk", "invoke_agent run"),
        ("chat m", "invoke_agent desk"),
        ("execute_tool get_weather", "invoke_agent desk"),
        ("chat m", "execute_tool get_weather"),
        ("chat m", "invoke_agent run"),
    ]


def test_spans_that_are_none_of_ours_let_through(
    tracer: trace.Tracer, client: openai.OpenAI, captured: Captured
) -> None:
    @art.trajectory(name="run")
    def handle() -> None:
        with (
            tracer.start_as_current_span("agent", attributes=AGENT),
            tracer.start_as_current_span("GET /orders", attributes={"http.request.method": "GET"}),
            tracer.start_as_current_span("SELECT", attributes={"db.system": "sqlite"}),
            tracer.start_as_current_span("tool", attributes=TOOL),
        ):
            ask(client)

    handle()
    assert tree(captured()) == [
        ("invoke_agent desk", "invoke_agent run"),
        ("execute_tool get_weather", "invoke_agent desk"),
        ("chat m", "execute_tool get_weather"),
    ]


def test_a_parent_that_is_not_the_current_span_is_the_parent(tracer: trace.Tracer, captured: Captured) -> None:
    @art.trajectory(name="run")
    def handle() -> None:
        first = tracer.start_span("agent", attributes=AGENT | {"gen_ai.agent.name": "first"})
        with tracer.start_as_current_span("agent", attributes=AGENT | {"gen_ai.agent.name": "second"}):
            tracer.start_span("tool", trace.set_span_in_context(first), attributes=TOOL).end()
        first.end()

    handle()
    assert tree(captured()) == [
        ("invoke_agent first", "invoke_agent run"),
        ("invoke_agent second", "invoke_agent run"),
        ("execute_tool get_weather", "invoke_agent first"),
    ]


def test_a_tool_of_ours_inside_a_foreign_one_is_the_parent_of_what_is_inside_it(
    tracer: trace.Tracer, captured: Captured
) -> None:
    @art.tool
    def look_up() -> None:
        tracer.start_span("tool", attributes=TOOL).end()

    @art.trajectory(name="run")
    def handle() -> None:
        with tracer.start_as_current_span("agent", attributes=AGENT):
            look_up()

    handle()
    assert tree(captured()) == [
        ("invoke_agent desk", "invoke_agent run"),
        ("execute_tool look_up", "invoke_agent desk"),
        ("execute_tool get_weather", "execute_tool look_up"),
    ]


def test_a_trajectory_begun_inside_a_foreign_span_has_what_is_inside_it(
    tracer: trace.Tracer, client: openai.OpenAI, stored: Callable[[], Store]
) -> None:
    @art.trajectory(name="inner")
    def inner() -> None:
        with tracer.start_as_current_span("tool", attributes=TOOL):
            ask(client)

    @art.trajectory(name="outer")
    def outer() -> None:
        with tracer.start_as_current_span("agent", attributes=AGENT):
            inner()

    with tracer.start_as_current_span("request"):
        outer()
    store = stored()
    assert tree(next(store.trajectories(name="outer"))) == [("invoke_agent desk", "invoke_agent outer")]
    assert tree(next(store.trajectories(name="inner"))) == [
        ("execute_tool get_weather", "invoke_agent inner"),
        ("chat m", "execute_tool get_weather"),
    ]


async def test_agents_side_by_side_do_not_mix(tracer: trace.Tracer, stored: Callable[[], Store]) -> None:
    @art.trajectory(name="handle")
    async def handle(city: str) -> None:
        with tracer.start_as_current_span("agent", attributes=AGENT | {"gen_ai.agent.name": city}):
            await asyncio.sleep(0.01)
            with tracer.start_as_current_span("tool", attributes=TOOL):
                await asyncio.sleep(0.01)

    await asyncio.gather(*map(handle, ["Rome", "Oslo", "Lima"]))
    for run in stored().trajectories():
        city = run.input["city"]
        assert tree(run) == [
            (f"invoke_agent {city}", "invoke_agent handle"),
            ("execute_tool get_weather", f"invoke_agent {city}"),
        ]


def test_a_span_started_in_a_thread_without_context_is_inside_the_parent_it_names(
    tracer: trace.Tracer, captured: Captured
) -> None:
    @art.trajectory(name="run")
    def handle() -> None:
        with tracer.start_as_current_span("agent", attributes=AGENT) as agent:
            context = trace.set_span_in_context(agent, Context())
            worker = threading.Thread(target=lambda: tracer.start_span("tool", context, attributes=TOOL).end())
            worker.start()
            worker.join()

    handle()
    assert tree(captured())[1] == ("execute_tool get_weather", "invoke_agent desk")


# One call, one span


def test_a_call_that_the_http_client_shows_is_recorded_once(
    tracer: trace.Tracer, client: openai.OpenAI, calls: Calls
) -> None:
    @art.trajectory
    def handle() -> None:
        with tracer.start_as_current_span("chat m", attributes=CHAT):
            ask(client)
        with tracer.start_as_current_span("chat m", attributes=CHAT), pytest.raises(openai.InternalServerError):
            ask(client, "fail")

    handle()
    assert [span.error is None for span in calls()] == [True, False]


def test_a_span_made_after_its_call_makes_no_second_one(
    tracer: trace.Tracer, client: openai.OpenAI, calls: Calls
) -> None:
    @art.trajectory
    def handle() -> None:
        for _ in range(2):
            started = ask(client).created  # the stub's clock stands still
            assert started == 1
        for call in list(spans.current_trajectory().calls):  # type: ignore[union-attr]
            late = tracer.start_span("chat m", start_time=call.start_time - 1000)  # type: ignore[attr-defined]
            late.set_attributes(CHAT)
            late.end()

    handle()
    assert len(calls()) == 2


def test_of_two_instrumentations_that_tell_of_a_call_one_counts(provider: TracerProvider, calls: Calls) -> None:
    one, other = provider.get_tracer("one"), provider.get_tracer("other")

    @art.trajectory
    def handle() -> None:
        for nested in (True, False):
            outside = one.start_span("chat", attributes=CHAT)
            context = trace.set_span_in_context(outside) if nested else None
            other.start_span("chat", context, attributes=CHAT | {"gen_ai.input.messages": SAID}).end()
            outside.end()

    handle()
    assert len(calls()) == 2


def test_calls_side_by_side_that_one_instrumentation_tells_of_are_all_recorded(
    tracer: trace.Tracer, calls: Calls
) -> None:
    @art.trajectory
    def handle() -> None:
        open_calls = [tracer.start_span("chat", attributes=CHAT) for _ in range(3)]
        for call in reversed(open_calls):
            call.end()

    handle()
    assert len(calls()) == 3


async def test_calls_side_by_side_that_the_http_client_shows_are_each_recorded_once(
    tracer: trace.Tracer, api: StubApi, calls: Calls
) -> None:
    async def call(client: openai.AsyncOpenAI, n: int) -> None:
        with tracer.start_as_current_span("chat", attributes=CHAT):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"{n}"}])

    @art.trajectory
    async def handle() -> None:
        async with openai.AsyncOpenAI(base_url=api.openai_url, api_key="x", max_retries=0) as client:
            await asyncio.gather(*(call(client, n) for n in range(8)))

    await handle()
    assert len(calls()) == 8


def test_a_call_of_another_model_during_a_foreign_call_does_not_stand_for_it(
    tracer: trace.Tracer, client: openai.OpenAI, calls: Calls
) -> None:
    @art.trajectory
    def handle() -> None:
        with tracer.start_as_current_span("chat", attributes=CHAT | {"gen_ai.request.model": "local"}):
            ask(client)

    handle()
    assert sorted(span.name for span in calls()) == ["chat local", "chat m"]


def test_a_retried_call_is_one_span(tracer: trace.Tracer, api: StubApi, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        with (
            openai.OpenAI(base_url=api.openai_url, api_key="x", max_retries=2) as client,
            tracer.start_as_current_span("chat", attributes=CHAT),
        ):
            ask(client, "flaky otel")

    handle()
    (span,) = calls()
    assert span.error is None


def test_a_tool_that_two_instrumentations_tell_of_is_one_span(provider: TracerProvider, captured: Captured) -> None:
    one, other = provider.get_tracer("one"), provider.get_tracer("other")

    @art.trajectory(name="run")
    def handle() -> None:
        with (
            one.start_as_current_span("agent", attributes=AGENT),
            other.start_as_current_span("agent", attributes=AGENT),
            one.start_as_current_span("tool", attributes=TOOL),
            other.start_as_current_span("tool", attributes=TOOL),
        ):
            pass

    handle()
    assert tree(captured()) == [
        ("invoke_agent desk", "invoke_agent run"),
        ("execute_tool get_weather", "invoke_agent desk"),
    ]


def test_two_instrumentations_that_know_nothing_of_each_other_tell_each_tool_once(
    provider: TracerProvider, captured: Captured
) -> None:
    tracers = [provider.get_tracer("one"), provider.get_tracer("other")]

    @art.trajectory(name="run")
    def handle() -> None:
        roots = [tracer.start_span("agent", attributes=AGENT) for tracer in tracers]
        contexts = [trace.set_span_in_context(root) for root in roots]
        side_by_side = [
            tracer.start_span("tool", context, attributes=TOOL)
            for _ in range(2)
            for tracer, context in zip(tracers, contexts, strict=True)
        ]
        for span in [*side_by_side, *roots]:
            span.end()

    handle()
    assert tree(captured()) == [
        ("invoke_agent desk", "invoke_agent run"),
        ("execute_tool get_weather", "invoke_agent desk"),
        ("execute_tool get_weather", "invoke_agent desk"),
    ]


def test_a_tool_of_the_same_name_in_an_agent_inside_is_another_one(
    provider: TracerProvider, captured: Captured
) -> None:
    one, other = provider.get_tracer("one"), provider.get_tracer("other")

    @art.trajectory(name="run")
    def handle() -> None:
        with (
            one.start_as_current_span("tool", attributes=TOOL),
            other.start_as_current_span("agent", attributes=AGENT),
            other.start_as_current_span("tool", attributes=TOOL),
        ):
            pass

    handle()
    assert tree(captured()) == [
        ("execute_tool get_weather", "invoke_agent run"),
        ("invoke_agent desk", "execute_tool get_weather"),
        ("execute_tool get_weather", "invoke_agent desk"),
    ]


# What they say


def test_a_call_that_no_hook_of_ours_sees_is_recorded_whole(tracer: trace.Tracer, calls: Calls) -> None:
    asked = {"type": "tool_call", "id": "1", "name": "get_weather", "arguments": '{"city": "Rome"}'}

    @art.trajectory
    def handle() -> None:
        with tracer.start_as_current_span("chat", attributes=CHAT) as span:
            span.set_attributes(
                {
                    "gen_ai.provider.name": "aws.bedrock",
                    "gen_ai.system_instructions": '[{"type": "text", "content": "be nice"}]',
                    "gen_ai.input.messages": SAID,
                    "gen_ai.output.messages": json.dumps(
                        [{"role": "assistant", "finish_reason": "stop", "parts": [asked]}]
                    ),
                    "gen_ai.usage.input_tokens": 7,
                    "gen_ai.response.finish_reasons": ["tool_calls"],
                    "url.full": "https://example.com/?key=secret",
                }
            )
        with tracer.start_as_current_span("tool", attributes=TOOL) as span:
            span.set_attributes({"gen_ai.tool.call.arguments": '{"city": "Rome"}', "gen_ai.tool.call.result": "sunny"})

    handle()
    (call,) = calls()
    a = call.attributes
    assert a["gen_ai.input.messages"] == [
        {"role": "system", "parts": [{"type": "text", "content": "be nice"}]},
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]},
    ]
    assert a["gen_ai.output.messages"] == [{"role": "assistant", "parts": [asked | {"arguments": {"city": "Rome"}}]}]
    assert (a["gen_ai.provider.name"], a["gen_ai.usage.input_tokens"]) == ("aws.bedrock", 7)
    assert a["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert a["art.http"] is False
    assert "url.full" not in a


def test_a_tool_call_is_matched_with_the_request_of_the_model(
    tracer: trace.Tracer, client: openai.OpenAI, captured: Captured
) -> None:
    @art.trajectory
    def handle() -> None:
        client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "weather in Rome"}],
            tools=[{"type": "function", "function": {"name": "get_weather"}}],
        )
        with tracer.start_as_current_span("tool", attributes=TOOL) as span:
            span.set_attributes({"gen_ai.tool.call.arguments": '{"city": "Rome"}', "gen_ai.tool.call.result": "sunny"})

    handle()
    (called,) = captured().tool_calls
    assert (called.id, called.state, called.arguments, called.result) == ("call_rome", "ran", {"city": "Rome"}, "sunny")


def test_an_error_is_kept_and_times_are_the_spans_own(tracer: trace.Tracer, captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        with pytest.raises(LookupError), tracer.start_as_current_span("tool", attributes=TOOL):
            raise LookupError("no such city")
        with tracer.start_as_current_span("chat", attributes=CHAT | {"error.type": "Throttled"}) as span:
            span.set_status(StatusCode.ERROR, "too many")
        span = tracer.start_span("chat", attributes=CHAT, start_time=1_000)
        span.end(end_time=5_000)

    handle()
    early, _, tool, chat = sorted(captured().spans, key=lambda span: span.started_at)
    assert (tool.error, tool.attributes["error.type"]) == ("LookupError: no such city", "LookupError")
    assert chat.error == "Throttled: too many"
    assert (early.started_at, early.ended_at) == (1_000, 5_000)


def test_the_kind_of_a_span_may_be_known_only_at_its_end(tracer: trace.Tracer, captured: Captured) -> None:
    @art.trajectory(name="run")
    def handle() -> None:
        with tracer.start_as_current_span("x") as span:
            span.set_attributes(CHAT)
        with tracer.start_as_current_span("y") as span:
            span.set_attributes(TOOL)

    handle()
    assert tree(captured()) == [("chat m", "invoke_agent run"), ("execute_tool get_weather", "invoke_agent run")]


async def test_what_is_cancelled_or_never_ended_says_so(tracer: trace.Tracer, captured: Captured) -> None:
    left = []

    @art.trajectory
    async def handle() -> None:
        left.append(tracer.start_span("tool", attributes=TOOL))
        left.append(tracer.start_span("chat", attributes=CHAT))
        with tracer.start_as_current_span("agent", attributes=AGENT):
            await asyncio.sleep(60)

    task = asyncio.create_task(handle())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert otel._processor._open == {}
    for span in left:
        span.end()
    run = captured()
    assert [(span.name, span.attributes.get("art.status"), span.error) for span in run.spans[1:3]] == [
        ("execute_tool get_weather", "cancelled", None),
        ("chat m", "cancelled", None),
    ]
    assert all(span.ended_at for span in run.spans)


def test_a_masked_value_is_masked_here_too(tracer: trace.Tracer, captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        with tracer.start_as_current_span("tool", attributes=TOOL) as span:
            span.set_attribute("gen_ai.tool.call.result", "sk-abcdefghijklmnopqrstuvwxyz012345")
            span.set_status(StatusCode.ERROR, "Bearer abcdefghijklmnopqrstuvwxyz012345")

    handle()
    (_, span) = captured().spans
    assert "abcdefgh" not in str(span)
    assert span.attributes["art.masked"] is True


# The user's own tracing


class _RecordOnly(Sampler):
    def should_sample(
        self, parent: Any, trace_id: Any, name: Any, kind: Any = None, attributes: Any = None, *_: Any, **__: Any
    ) -> SamplingResult:
        return SamplingResult(Decision.RECORD_ONLY, attributes)

    def get_description(self) -> str:
        return "record only"


def _agent_run(tracer: trace.Tracer, client: openai.OpenAI) -> None:
    with tracer.start_as_current_span("agent", attributes=AGENT):
        with tracer.start_as_current_span("chat", attributes=CHAT):
            ask(client)
        with pytest.raises(LookupError), tracer.start_as_current_span("tool", attributes=TOOL):
            raise LookupError


def test_the_users_exporter_gets_the_same_spans_with_and_without_us(client: openai.OpenAI, captured: Captured) -> None:
    def exported(*, ours: bool) -> list[Any]:
        exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        if ours:
            otel.install(provider)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        _agent_run(provider.get_tracer("mine"), client)
        finished = exporter.get_finished_spans()
        names = {span.context.span_id: span.name for span in finished if span.context}
        return [_seen(span, names) for span in finished]

    without = exported(ours=False)

    @art.trajectory
    def handle() -> list[Any]:
        return exported(ours=True)

    assert handle() == without
    assert len(captured().spans) == 4


def _seen(span: ReadableSpan, names: dict[int, str]) -> Any:
    parent = names.get(span.parent.span_id) if span.parent else None
    return (
        span.name,
        parent,
        span.kind,
        dict(span.attributes or {}),
        span.status.status_code,
        len(span.events),
        span.links,
    )


def test_a_sampler_that_drops_costs_no_llm_call(client: openai.OpenAI, calls: Calls) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    otel.install(provider)

    @art.trajectory
    def handle() -> None:
        _agent_run(provider.get_tracer("mine"), client)

    handle()
    assert len(calls()) == 1


def test_spans_that_are_recorded_but_not_exported_are_read(client: openai.OpenAI, captured: Captured) -> None:
    provider = TracerProvider(sampler=_RecordOnly(), shutdown_on_exit=False)
    otel.install(provider)

    @art.trajectory
    def handle() -> None:
        _agent_run(provider.get_tracer("mine"), client)

    handle()
    assert [span.operation for span in captured().spans[1:]] == ["invoke_agent", "chat", "execute_tool"]


def test_installing_twice_changes_nothing(provider: TracerProvider, captured: Captured) -> None:
    otel.install(provider)

    @art.trajectory
    def handle() -> None:
        with provider.get_tracer("mine").start_as_current_span("tool", attributes=TOOL):
            pass

    handle()
    assert len(captured().spans) == 2


def test_every_provider_is_found_whenever_it_is_made() -> None:
    program = """
import art_sdk as art
from opentelemetry import trace
import opentelemetry.sdk.trace as sdk

first = sdk.TracerProvider(shutdown_on_exit=False)
trace.set_tracer_provider(first)
art.instrument()
from art_sdk.integrations import otel
otel.watch_providers(sdk)
second = sdk.TracerProvider(shutdown_on_exit=False)
for provider in (first, second):
    found = provider._active_span_processor._span_processors
    assert found.count(otel._processor) == 1, found
assert trace.get_tracer_provider() is first
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


# Outside, off, and zero code


def test_outside_a_trajectory_nothing_is_recorded(tracer: trace.Tracer, client: openai.OpenAI, home: Any) -> None:
    from art_sdk.capture import journal

    _agent_run(tracer, client)
    assert journal.current() is None
    assert otel._processor._open == {}


def test_uninstrument_turns_it_off(tracer: trace.Tracer, client: openai.OpenAI, captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        _agent_run(tracer, client)

    art.uninstrument()
    try:
        handle()
    finally:
        art.instrument()
    assert len(captured().spans) == 1


def test_a_root_agent_run_is_a_trajectory_by_itself_in_zero_code_mode(
    tracer: trace.Tracer, client: openai.OpenAI, stored: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_AUTO", "1")
    with tracer.start_as_current_span("agent", attributes=AGENT) as span:
        with tracer.start_as_current_span("tool", attributes=TOOL):
            ask(client)
        span.set_attributes({"gen_ai.input.messages": SAID, "gen_ai.output.messages": SAID})
    with pytest.raises(LookupError), tracer.start_as_current_span("agent", attributes=AGENT):
        raise LookupError("lost")
    failed, run = stored().trajectories()
    assert (run.name, run.status, failed.status, failed.error) == ("desk", "finished", "failed", "LookupError: lost")
    assert tree(run) == [("execute_tool get_weather", "invoke_agent desk"), ("chat m", "execute_tool get_weather")]
    said = [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    assert (run.input, run.output) == (said, said)


def test_a_fault_of_ours_costs_the_user_nothing(
    tracer: trace.Tracer, client: openai.OpenAI, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(span: ReadableSpan) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(otel.dialects, "read", broken)

    @art.trajectory
    def handle() -> str:
        _agent_run(tracer, client)
        return "done"

    assert handle() == "done"
    assert set(guard.errors) == {"ForeignSpans._start", "ForeignSpans._end"}


def test_malformed_content_is_kept_as_it_came(tracer: trace.Tracer, captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        with tracer.start_as_current_span("chat", attributes=CHAT) as span:
            span.set_attributes({"gen_ai.input.messages": '[{"role": "us', "gen_ai.tool.definitions": "none"})
        with tracer.start_as_current_span("tool", attributes=TOOL) as span:
            span.set_attribute("gen_ai.tool.call.arguments", '{"city": "Ro')

    handle()
    (_, call, tool) = captured().spans
    assert call.operation == "chat"
    assert tool.attributes["gen_ai.tool.call.arguments"] == '{"city": "Ro'
