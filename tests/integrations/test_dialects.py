"""Each dialect is read as the packages that speak it really write it.

What a dialect says of an LLM call is held against what went over the wire: the HTTP hook saw the same call.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import agents
import anthropic
import openai
import pytest
import smolagents
import wrapt
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent, InstrumentationSettings
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from stub_api import StubApi

import art_sdk as art
from art_sdk.capture import spans
from art_sdk.integrations import dialects, otel
from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory

Captured = Callable[[], Trajectory]
Calls = Callable[[], list[Span]]

OPENINFERENCE, OPENLLMETRY, GENAI = (
    "openinference.instrumentation",
    "opentelemetry.instrumentation",
    "opentelemetry.instrumentation.genai",
)
FAMILIES = (OPENINFERENCE, OPENLLMETRY, GENAI)

pytestmark = pytest.mark.slow  # a dozen frameworks to import


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    yield
    assert otel._processor._open == {}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    agents.set_trace_processors([])  # by default they are sent to OpenAI


@pytest.fixture
def exporter(home: Any) -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    otel.install(provider)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@contextmanager
def instrumented(provider: TracerProvider, family: str, library: str) -> Iterator[None]:
    module = import_module(f"{family}.{library}")
    (name,) = (name for name in vars(module) if name.endswith("Instrumentor") and name != "BaseInstrumentor")
    instrumentor = getattr(module, name)()
    instrumentor.instrument(tracer_provider=provider)
    try:
        yield
    finally:
        instrumentor.uninstrument()
        agents.set_trace_processors([])
        _take_out_the_rest()


def _take_out_the_rest() -> None:
    """OpenLLMetry's leave wrappers where they are."""
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith(_WRAPPED):
            continue
        for kind in vars(module).values():
            for name, value in list(vars(kind).items()) if isinstance(kind, type) else ():
                plain = value
                while isinstance(plain, wrapt.FunctionWrapper | wrapt.BoundFunctionWrapper):
                    plain = plain.__wrapped__
                if plain is not value:
                    setattr(kind, name, plain)


_WRAPPED = ("openai.resources.", "anthropic.resources.")


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Which one.
    """
    if city == "Atlantis":
        raise LookupError("no such city")
    return f"sunny in {city}"


def tree(run: Trajectory) -> list[tuple[str, str | None]]:
    names = {span.span_id: span.name for span in run.spans}
    return [(span.name, names.get(span.parent_id or "")) for span in run.spans[1:]]


def check_agent(run: Trajectory, *around: str, last: str = "It is sunny in Rome") -> None:
    """One LLM call, one tool call, the final answer: inside the agent, told whole."""
    nested = ["invoke_agent run", *around]
    inside = nested[-1]
    assert tree(run) == [
        *zip(nested[1:], nested, strict=False),
        ("chat m", inside),
        ("execute_tool get_weather", inside),
        ("chat m", inside),
    ]
    first, tool, final = run.spans[-3:]
    assert all(span.error is None and span.ended_at for span in run.spans)
    assert tool.attributes["gen_ai.tool.call.arguments"] == {"city": "Rome"}
    assert tool.attributes["gen_ai.tool.call.result"] == "sunny in Rome"
    assert tool.attributes["gen_ai.tool.call.id"] == "call_rome"
    assert [call.state for call in run.tool_calls] == ["ran"]
    asked = {"type": "tool_call", "id": "call_rome", "name": "get_weather", "arguments": {"city": "Rome"}}
    assert asked in first.attributes["gen_ai.output.messages"][0]["parts"]
    assert "weather in Rome" in str(first.attributes["gen_ai.input.messages"])
    assert {"type": "text", "content": last} in final.attributes["gen_ai.output.messages"][0]["parts"]
    for call in (first, final):
        a = call.attributes
        assert (a["gen_ai.request.model"], a["gen_ai.usage.input_tokens"], a["gen_ai.usage.output_tokens"]) == (
            "m",
            7,
            5,
        )


# Raw clients: what is said of a call, and what went over the wire

TOOLS: Any = [{"name": "get_weather", "description": "The weather.", "parameters": {"type": "object"}}]
HISTORY: Any = [
    {"role": "system", "content": "be nice"},
    {"role": "user", "content": "weather in Rome"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "sunny"},
]


def _openai(api: StubApi) -> openai.OpenAI:
    return openai.OpenAI(base_url=api.openai_url, api_key="x", max_retries=0)


def chat(api: StubApi) -> None:
    with _openai(api) as client:
        tools: Any = [{"type": "function", "function": tool} for tool in TOOLS]
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "weather in Rome and Oslo"}], tools=tools, temperature=0.5
        )
        client.chat.completions.create(model="m", messages=HISTORY)


def chat_stream(api: StubApi) -> None:
    with _openai(api) as client:
        for _ in client.chat.completions.create(
            model="m", messages=HISTORY, stream=True, stream_options={"include_usage": True}
        ):
            pass


def chat_async(api: StubApi) -> None:
    async def call() -> None:
        async with openai.AsyncOpenAI(base_url=api.openai_url, api_key="x", max_retries=0) as client:
            await client.chat.completions.create(model="m", messages=HISTORY)

    asyncio.run(call())


def responses(api: StubApi) -> None:
    with _openai(api) as client:
        client.responses.create(model="m", instructions="be nice", input="hi")


def messages(api: StubApi) -> None:
    with anthropic.Anthropic(base_url=api.url, api_key="x", max_retries=0) as client:
        tools: Any = [{"name": "get_weather", "input_schema": {"type": "object"}}]
        client.messages.create(
            model="m",
            max_tokens=9,
            system="be nice",
            messages=[{"role": "user", "content": "weather in Rome"}],
            tools=tools,
        )
        client.messages.create(
            model="m",
            max_tokens=9,
            messages=[
                {"role": "user", "content": "weather in Rome"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "1", "name": "w", "input": {"city": "Rome"}}],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "sunny"}]},
            ],
        )


def messages_stream(api: StubApi) -> None:
    question: Any = [{"role": "user", "content": "hi"}]
    with (
        anthropic.Anthropic(base_url=api.url, api_key="x", max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=9, messages=question) as stream,
    ):
        stream.until_done()


RAW: dict[Callable[[StubApi], None], tuple[str, int]] = {
    chat: ("openai", 2),
    chat_stream: ("openai", 1),
    chat_async: ("openai", 1),
    responses: ("openai", 1),
    messages: ("anthropic", 2),
    messages_stream: ("anthropic", 1),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("program", RAW)
def test_a_raw_clients_call_is_one_span_and_says_what_went_over_the_wire(
    family: str,
    program: Callable[[StubApi], None],
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    api: StubApi,
    calls: Calls,
) -> None:
    library, count = RAW[program]

    @art.trajectory
    def handle() -> None:
        program(api)

    with instrumented(provider, family, library):
        handle()
    seen = calls()
    assert len(seen) == count
    assert all("art.http" not in span.attributes and span.error is None for span in seen)
    said = [dialects.read(span) for span in exporter.get_finished_spans() if _scope(span).startswith(family)]
    assert len(said) == count
    for reading, span in zip(said, seen, strict=True):
        _compare(reading, span)


def _scope(span: ReadableSpan) -> str:
    return span.instrumentation_scope.name if span.instrumentation_scope else ""


def _compare(reading: Any, span: Span) -> None:
    a = span.attributes
    assert reading.operation == span.operation
    assert reading.subject == "m"
    assert _parts(reading.content[spans.INPUT_MESSAGES]) == _parts(a["gen_ai.input.messages"])
    assert _parts(reading.content[spans.OUTPUT_MESSAGES]) == _parts(a["gen_ai.output.messages"])
    assert bool(reading.content.get(spans.TOOL_DEFINITIONS)) == bool(a.get("gen_ai.tool.definitions"))
    for key in (spans.REQUEST_MODEL, spans.INPUT_TOKENS, "gen_ai.request.temperature"):
        assert reading.attributes.get(key) == a.get(key), key
    # OpenLLMetry adds up the counts of a stream of Anthropic's, each of which counts from its beginning.
    assert reading.attributes[spans.OUTPUT_TOKENS] in (a[spans.OUTPUT_TOKENS], 6)
    if spans.RESPONSE_ID in reading.attributes:
        assert reading.attributes[spans.RESPONSE_ID] == a[spans.RESPONSE_ID]


def _parts(messages: Any) -> list[Any]:
    """The parts of messages with their roles; a tool's result is in a message of another role here than there."""
    return [
        (None if part["type"] == "tool_call_response" else message["role"], part)
        for message in messages
        for part in message["parts"]
    ]


def test_three_instrumentations_of_one_client_at_once_make_one_span(
    provider: TracerProvider, api: StubApi, calls: Calls
) -> None:
    @art.trajectory
    def handle() -> None:
        chat(api)
        chat_stream(api)
        responses(api)
        messages(api)

    with ExitStack() as all_on:
        for family in FAMILIES:
            all_on.enter_context(instrumented(provider, family, "openai"))
            all_on.enter_context(instrumented(provider, family, "anthropic"))
        handle()
    assert len(calls()) == 6


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_fails_is_one_failed_span(
    family: str, provider: TracerProvider, api: StubApi, calls: Calls
) -> None:
    @art.trajectory
    def handle() -> None:
        with _openai(api) as client, pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "fail"}])
        with _openai(api) as client, pytest.raises(openai.InternalServerError):
            client.responses.create(model="m", input="fail")
        with (
            anthropic.Anthropic(base_url=api.url, api_key="x", max_retries=0) as claude,
            pytest.raises(anthropic.InternalServerError),
        ):
            claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "fail"}])

    with instrumented(provider, family, "openai"), instrumented(provider, family, "anthropic"):
        handle()
    assert [span.error is None for span in calls()] == [False, False, False]


LANGCHAIN_PROGRAM = """
import sys
from importlib import import_module
import art_sdk as art
from art_sdk.integrations import otel
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from opentelemetry.sdk.trace import TracerProvider

family, url = sys.argv[1:]
art.instrument()
provider = TracerProvider()
otel.install(provider)
for library in ("langchain", "openai"):
    module = import_module(f"{family}.{library}")
    (name,) = (name for name in vars(module) if name.endswith("Instrumentor") and name != "BaseInstrumentor")
    getattr(module, name)().instrument(tracer_provider=provider)

@tool
def get_weather(city: str) -> str:
    "The weather."
    return f"sunny in {city}"

@art.trajectory(name="run")
def handle():
    ChatOpenAI(model="m", base_url=url, api_key="x", max_retries=0).invoke("hi")
    get_weather.invoke({"city": "Rome"})

handle()
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_langchains_instrumentations_add_nothing_to_our_own_hook(family: str, api: StubApi, captured: Captured) -> None:
    # In a process of its own: they leave handlers in LangChain that can't be taken out.
    subprocess.run([sys.executable, "-c", LANGCHAIN_PROGRAM, family, api.openai_url], check=True, timeout=100)
    assert tree(captured()) == [("chat m", "invoke_agent run"), ("execute_tool get_weather", "invoke_agent run")]


# Pydantic AI


@pytest.fixture
async def pydantic_model(api: StubApi) -> Any:
    async with openai.AsyncOpenAI(base_url=api.openai_url, api_key="x", max_retries=0) as client:
        yield OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))


def pydantic_agent(model: Any, provider: TracerProvider, version: Any = 5) -> Agent[None, str]:
    agent: Agent[None, str] = Agent(model, name="weather", instructions="be nice", tools=[get_weather])
    agent.instrument = InstrumentationSettings(tracer_provider=provider, version=version)
    return agent


@pytest.mark.filterwarnings("ignore:Instrumentation format versions")
@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
async def test_a_pydantic_ai_agent_is_told_whole(
    version: int, pydantic_model: Any, provider: TracerProvider, captured: Captured
) -> None:
    agent = pydantic_agent(pydantic_model, provider, version)

    @art.trajectory(name="run")
    async def handle() -> str:
        return (await agent.run("weather in Rome")).output

    assert await handle() == "It is sunny in Rome"
    run = captured()
    check_agent(run, "invoke_agent weather")
    assert run.spans[1].attributes["art.input"][-1]["parts"][-1]["content"] == "weather in Rome"
    assert run.spans[1].attributes["art.output"] == "It is sunny in Rome"


async def test_a_streamed_pydantic_ai_agent_is_told_whole(
    pydantic_model: Any, provider: TracerProvider, captured: Captured
) -> None:
    agent = pydantic_agent(pydantic_model, provider)

    @art.trajectory(name="run")
    async def handle() -> str:
        async with agent.run_stream("weather in Rome") as stream:
            return await stream.get_output()

    assert await handle() == "It is sunny in Rome"
    check_agent(captured(), "invoke_agent weather")


async def test_pydantic_ai_with_other_instrumentations_of_the_same_calls(
    pydantic_model: Any, provider: TracerProvider, captured: Captured
) -> None:
    from openinference.instrumentation.pydantic_ai import OpenInferenceSpanProcessor

    provider.add_span_processor(OpenInferenceSpanProcessor())
    agent = pydantic_agent(pydantic_model, provider)

    @art.trajectory(name="run")
    async def handle() -> str:
        return (await agent.run("weather in Rome")).output

    with instrumented(provider, OPENLLMETRY, "openai"), instrumented(provider, OPENINFERENCE, "openai"):
        await handle()
    check_agent(captured(), "invoke_agent weather")


@pytest.mark.parametrize("openinference_first", [False, True])
async def test_a_pydantic_ai_model_without_http_is_told_by_its_spans(
    openinference_first: bool, home: Any, captured: Captured
) -> None:
    from openinference.instrumentation.pydantic_ai import OpenInferenceSpanProcessor

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("get_weather", {"city": "Rome"}, "call_rome")])
        return ModelResponse([TextPart("It is sunny in Rome")])

    provider = TracerProvider(shutdown_on_exit=False)
    if openinference_first:  # it rewrites the attributes of Pydantic AI's spans as they end
        provider.add_span_processor(OpenInferenceSpanProcessor())
    otel.install(provider)
    agent = pydantic_agent(FunctionModel(answer, model_name="m"), provider)

    @art.trajectory(name="run")
    async def handle() -> str:
        return (await agent.run("weather in Rome")).output

    assert await handle() == "It is sunny in Rome"
    run = captured()
    assert [span.operation for span in run.spans[1:]] == ["invoke_agent", "chat", "execute_tool", "chat"]
    first, tool, final = run.spans[2:]
    assert first.attributes["gen_ai.input.messages"] == [
        {"role": "system", "parts": [{"type": "text", "content": "be nice"}]},
        {"role": "user", "parts": [{"type": "text", "content": "weather in Rome"}]},
    ]
    assert [call.state for call in run.tool_calls] == ["ran"]
    assert tool.attributes["gen_ai.tool.call.arguments"] == {"city": "Rome"}
    assert tool.attributes["gen_ai.tool.call.result"] == "sunny in Rome"
    assert final.attributes["gen_ai.output.messages"][0]["parts"] == [
        {"type": "text", "content": "It is sunny in Rome"}
    ]
    assert [message["role"] for message in run.messages()][:3] == ["system", "user", "assistant"]


async def test_a_pydantic_ai_tool_that_raises_is_a_failed_span(
    pydantic_model: Any, provider: TracerProvider, captured: Captured
) -> None:
    agent = pydantic_agent(pydantic_model, provider)

    @art.trajectory
    async def handle() -> str:
        return (await agent.run("weather in Atlantis")).output

    with pytest.raises(LookupError):
        await handle()
    run = captured()
    assert run.status == "failed"
    (tool,) = (span for span in run.spans if span.operation == "execute_tool")
    assert tool.error == "LookupError: no such city"


# OpenAI Agents


@pytest.fixture(params=["chat", "responses"])
async def agents_model(request: pytest.FixtureRequest, api: StubApi) -> Any:
    kind = agents.OpenAIChatCompletionsModel if request.param == "chat" else agents.OpenAIResponsesModel
    async with openai.AsyncOpenAI(base_url=api.openai_url, api_key="x", max_retries=0) as client:
        yield kind("m", openai_client=client)


def openai_agent(model: Any) -> Any:
    return agents.Agent(
        name="weather",
        instructions="be nice",
        tools=[agents.function_tool(get_weather)],
        model=model,
        model_settings=agents.ModelSettings(include_usage=True),
    )


AROUND = {
    OPENINFERENCE: ("invoke_agent Agent workflow", "invoke_agent weather"),
    OPENLLMETRY: ("invoke_agent Agent Workflow", "invoke_agent weather"),
    GENAI: ("invoke_agent Agent workflow", "invoke_agent weather"),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_openai_agents_run_is_told_whole(
    family: str, streamed: bool, agents_model: Any, provider: TracerProvider, captured: Captured
) -> None:
    @art.trajectory(name="run")
    async def handle() -> str:
        if not streamed:
            return str((await agents.Runner.run(openai_agent(agents_model), "weather in Rome")).final_output)
        stream = agents.Runner.run_streamed(openai_agent(agents_model), "weather in Rome")
        async for _ in stream.stream_events():
            pass
        return str(stream.final_output)

    with instrumented(provider, family, "openai_agents"):
        assert await handle() == "It is sunny in Rome"
    check_agent(captured(), *AROUND[family])


async def test_three_instrumentations_of_openai_agents_at_once_tell_each_thing_once(
    agents_model: Any, provider: TracerProvider, captured: Captured
) -> None:
    @art.trajectory(name="run")
    async def handle() -> None:
        await agents.Runner.run(openai_agent(agents_model), "weather in Rome")

    with ExitStack() as all_on:
        for family in FAMILIES:
            all_on.enter_context(instrumented(provider, family, "openai_agents"))
            all_on.enter_context(instrumented(provider, family, "openai"))
        await handle()
    assert sorted(span.name for span in captured().spans) == [  # whose parents, they disagree
        *("chat m", "chat m", "execute_tool get_weather"),
        *("invoke_agent Agent workflow", "invoke_agent run", "invoke_agent weather"),
    ]


async def test_an_openai_agents_run_is_a_trajectory_by_itself_in_zero_code_mode(
    api: StubApi, provider: TracerProvider, stored: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_AUTO", "1")
    async with openai.AsyncOpenAI(base_url=api.openai_url, api_key="x", max_retries=0) as client:
        model = agents.OpenAIChatCompletionsModel("m", openai_client=client)
        with instrumented(provider, OPENINFERENCE, "openai_agents"):
            await agents.Runner.run(openai_agent(model), "weather in Rome")
    (run,) = stored().trajectories()
    assert (run.name, run.status) == ("Agent workflow", "finished")
    assert [span.operation for span in run.spans[1:]] == ["invoke_agent", "chat", "execute_tool", "chat"]


# smolagents


def smol_agent(model: Any) -> Any:
    return smolagents.ToolCallingAgent(
        tools=[smolagents.tool(get_weather)], model=model, max_steps=1, verbosity_level=0
    )


def test_a_smolagents_run_is_told_whole(api: StubApi, provider: TracerProvider, captured: Captured) -> None:
    agent = smol_agent(smolagents.OpenAIServerModel("m", api_base=api.openai_url, api_key="x"))

    @art.trajectory(name="run")
    def handle() -> str:
        return str(agent.run("weather in Rome"))

    with instrumented(provider, OPENINFERENCE, "smolagents"):
        answer = handle()
    agent.model.client.close()
    check_agent(captured(), "invoke_agent ToolCallingAgent.run", last=answer)


def test_smolagents_with_the_conventions_instrumentation_has_agent_and_calls(
    api: StubApi, provider: TracerProvider, captured: Captured
) -> None:
    agent = smol_agent(smolagents.OpenAIServerModel("m", api_base=api.openai_url, api_key="x"))

    @art.trajectory(name="run")
    def handle() -> str:
        return str(agent.run("weather in Rome"))

    with instrumented(provider, GENAI, "smolagents"):
        handle()
    agent.model.client.close()
    assert tree(captured()) == [  # version 1.2b0 makes no spans of tools
        ("invoke_agent ToolCallingAgent", "invoke_agent run"),
        ("chat m", "invoke_agent ToolCallingAgent"),
        ("chat m", "invoke_agent ToolCallingAgent"),
    ]


def test_a_smolagents_model_without_http_is_told_by_its_spans(
    provider: TracerProvider, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Local(smolagents.Model):
        def generate(self, messages: Any, **_: Any) -> Any:
            usage = smolagents.TokenUsage(input_tokens=7, output_tokens=5)
            if len(messages) > 2:
                return smolagents.ChatMessage(role="assistant", content="It is sunny", token_usage=usage)
            function = smolagents.models.ChatMessageToolCallFunction('{"city": "Rome"}', "get_weather")
            call = smolagents.models.ChatMessageToolCall(id="call_rome", type="function", function=function)
            return smolagents.ChatMessage(role="assistant", content="", tool_calls=[call], token_usage=usage)

    monkeypatch.setattr(smolagents, "Local", Local, raising=False)  # only models of its own are instrumented
    with instrumented(provider, OPENINFERENCE, "smolagents"):

        @art.trajectory(name="run")
        def handle() -> str:
            return str(smol_agent(Local(model_id="m")).run("weather in Rome"))

        assert handle() == "It is sunny"
    run = captured()
    check_agent(run, "invoke_agent ToolCallingAgent.run", last="It is sunny")
    assert [span.attributes["art.http"] for span in run.spans if span.operation == "chat"] == [False, False]
