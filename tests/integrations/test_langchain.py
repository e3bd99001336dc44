"""LangChain and LangGraph, unchanged: every LLM call is one span, every tool call is one, parents are right."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import openai
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from stub_api import StubApi

import art_sdk as art
from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory

from .clients import sdk_http
from .said import said

Calls = Callable[[], list[Span]]
Captured = Callable[[], Trajectory]


pytestmark = pytest.mark.usefixtures("no_open_runs")


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return f"sunny in {city}"


def outputs(spans: list[Span]) -> list[str]:
    return sorted(span.attributes["gen_ai.output.messages"][0]["parts"][0]["content"] for span in spans)


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


def agent(model: ChatOpenAI, **options: Any) -> Any:
    """A ReAct agent as people write it, for both sync and async use."""
    bound = model.bind_tools([get_weather])

    def think(state: State) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    async def athink(state: State) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph = StateGraph(State)
    graph.add_node("think", RunnableLambda(think, athink))
    graph.add_node("tools", ToolNode([get_weather], handle_tool_errors=True))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile(**options)


def question(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


# One call, one span, however it is made


async def _run(make: Any, model: ChatOpenAI) -> Any:
    result = make(model)
    if hasattr(result, "__aiter__"):
        return [item async for item in result]
    if hasattr(result, "__await__"):
        return await result
    if hasattr(result, "__next__"):
        return list(result)
    return result


WAYS: dict[str, Any] = {
    "invoke": lambda m: m.invoke("hi"),
    "ainvoke": lambda m: m.ainvoke("hi"),
    "stream": lambda m: m.stream("hi"),
    "astream": lambda m: m.astream("hi"),
    "batch": lambda m: m.batch(["hi"]),
    "abatch": lambda m: m.abatch(["hi"]),
    "generate": lambda m: m.generate([[HumanMessage("hi")]]),
    "agenerate": lambda m: m.agenerate([[HumanMessage("hi")]]),
    "chain": lambda m: (ChatPromptTemplate.from_template("{x}") | m).invoke({"x": "hi"}),
    "chain astream": lambda m: (ChatPromptTemplate.from_template("{x}") | m).astream({"x": "hi"}),
    "to_thread": lambda m: asyncio.to_thread(m.invoke, "hi"),
    "bound": lambda m: m.bind(stop=["x"]).stream("hi"),
    "streaming model": lambda m: m.model_copy(update={"streaming": True}).invoke("hi"),
    "async streaming model": lambda m: m.model_copy(update={"streaming": True}).ainvoke("hi"),
    "astream_events": lambda m: m.astream_events("hi", version="v2"),
    "callbacks=[]": lambda m: m.invoke("hi", config={"callbacks": []}),
}
if hasattr(ChatOpenAI, "stream_events"):  # of later versions
    WAYS["stream_events v3"] = lambda m: iter(m.stream_events("hi", version="v3"))


@pytest.mark.parametrize("way", WAYS)
async def test_one_call_is_one_span(model: ChatOpenAI, calls: Calls, api: StubApi, way: str) -> None:
    @art.trajectory
    async def handle() -> None:
        await _run(WAYS[way], model)

    await handle()
    assert len(api.requests) == 1
    (span,) = calls()
    assert span.name == "chat m"
    assert span.attributes["gen_ai.input.messages"] == [said("user", "hi")]
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi")]
    assert span.attributes["gen_ai.response.id"].startswith("chatcmpl-")
    assert "art.http" not in span.attributes
    assert (span.error, span.ended_at is None) == (None, False)


def test_each_item_of_a_batch_is_one_span(model: ChatOpenAI, captured: Captured) -> None:
    @art.trajectory
    def handle() -> list[Any]:
        return [message.content for message in model.batch([f"q{n}" for n in range(5)])]

    assert handle() == [f"echo: q{n}" for n in range(5)]
    root, *spans = captured().spans
    assert outputs(spans) == [f"echo: q{n}" for n in range(5)]
    assert {span.parent_id for span in spans} == {root.span_id}
    assert len({span.attributes["gen_ai.response.id"] for span in spans}) == 5


async def test_two_prompts_of_one_generate_keep_their_own_answers(model: ChatOpenAI, calls: Calls) -> None:
    @art.trajectory
    async def handle() -> None:
        await model.agenerate([[HumanMessage("a")], [HumanMessage("b")]])

    await handle()
    for span in calls():
        (asked,), (answered,) = (span.attributes[f"gen_ai.{side}.messages"] for side in ("input", "output"))
        assert answered["parts"][0]["content"] == f"echo: {asked['parts'][0]['content']}"


def test_parallel_branches_are_one_span_each(model: ChatOpenAI, calls: Calls) -> None:
    @art.trajectory
    def handle() -> Any:
        return RunnableParallel(a=model, b=model | (lambda message: message.content)).invoke("hi")

    assert handle()["b"] == "echo: hi"
    assert outputs(calls()) == ["echo: hi"] * 2


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream", "batch"])
async def test_a_text_model_is_one_span(api: StubApi, options: Any, calls: Calls, way: str) -> None:
    model: Any = OpenAI(model="t", **options)

    @art.trajectory
    async def handle() -> None:
        await _run(WAYS[way], model)

    await handle()
    assert len(api.requests) == 1
    (span,) = calls()
    assert span.name == "text_completion t"
    assert span.attributes["gen_ai.input.messages"] == [said("user", "hi")]
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi")]


def test_structured_output_is_one_span(model: ChatOpenAI, calls: Calls) -> None:
    class City(BaseModel):
        """A city."""

        city: str

    @art.trajectory
    def handle() -> Any:
        return model.with_structured_output(City, method="function_calling", include_raw=True).invoke("hi")

    assert handle()["raw"].content == "echo: hi"
    (span,) = calls()
    assert span.attributes["gen_ai.tool.definitions"][0]["function"]["name"] == "City"


def test_a_model_without_http_is_recorded_and_says_so(calls: Calls, home: Any) -> None:
    fake = GenericFakeChatModel(messages=iter([AIMessage("from nowhere")]))

    @art.trajectory
    def handle() -> Any:
        return fake.invoke("hi").content

    assert handle() == "from nowhere"
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "from nowhere")]
    assert span.attributes["art.http"] is False
    assert "gen_ai.response.id" not in span.attributes


def test_an_answer_from_the_cache_says_that_no_request_was_made(api: StubApi, calls: Calls) -> None:
    model = ChatOpenAI(model="m", base_url=api.openai_url, api_key="x", cache=InMemoryCache())

    @art.trajectory
    def handle() -> None:
        model.invoke("hi")
        model.invoke("hi")

    handle()
    assert len(api.requests) == 1
    fresh, cached = calls()
    assert "art.http" not in fresh.attributes
    assert cached.attributes["art.http"] is False
    assert cached.attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi")]


# Faults and early ends


def test_an_http_error_is_a_failed_span_and_the_exception_unchanged(model: ChatOpenAI, captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        model.invoke("fail")

    with pytest.raises(openai.InternalServerError) as caught:
        handle()
    assert caught.value.status_code == 500
    run = captured()
    assert run.status == "failed"
    _, span = run.spans
    assert span.error is not None
    assert "the stub fails" in span.error
    assert span.error == f"{type(caught.value).__name__}: {caught.value}"
    assert span.attributes["error.type"] == type(caught.value).__name__


def test_a_retry_inside_the_sdk_stays_one_span(api: StubApi, calls: Calls) -> None:
    model = ChatOpenAI(model="m", base_url=api.openai_url, api_key="x", max_retries=1)

    @art.trajectory
    def handle() -> Any:
        return model.invoke("flaky").content

    assert handle() == "echo: flaky"
    assert len(api.requests) == 2
    (span,) = calls()
    assert (span.error, span.attributes["http.response.status_code"]) == (None, 200)
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "echo: flaky")]


def test_fallbacks_are_a_failed_span_and_a_good_one(model: ChatOpenAI, api: StubApi, calls: Calls) -> None:
    broken = ChatOpenAI(model="other", base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)

    @art.trajectory
    def handle() -> Any:
        return broken.with_fallbacks([model]).invoke("hi").content

    assert handle() == "echo: hi"
    first, second = calls()
    assert (first.name, first.error is None) == ("chat other", False)
    assert (second.name, second.error) == ("chat m", None)


def test_a_stream_that_is_left_early_keeps_what_came(model: ChatOpenAI, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        stream = model.stream("long")
        for number, _ in enumerate(stream):
            if number == 5:
                break
        stream.close()  # type: ignore[attr-defined]

    handle()
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"][0]["parts"][0]["content"].startswith("w0 w1 w2 ")
    assert span.attributes["art.stream.end"] == "closed"
    assert (span.error, span.attributes["art.status"]) == (None, "cancelled")


async def test_an_async_stream_that_is_cancelled_keeps_what_came(model: ChatOpenAI, calls: Calls) -> None:
    begun = asyncio.Event()

    @art.trajectory
    async def handle() -> None:
        async for chunk in model.astream("long"):
            if chunk.content:
                begun.set()

    task = asyncio.create_task(handle())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"][0]["parts"][0]["content"].startswith("w0 ")
    assert span.error is None


def test_a_stream_that_breaks_off_keeps_what_came(model: ChatOpenAI, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        with pytest.raises((openai.APIConnectionError, sdk_http.RemoteProtocolError)):
            list(model.stream("cut"))

    handle()
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "one two ")]
    assert span.error is not None


# Agents


async def _check_agent(run: Trajectory) -> None:
    kinds = [(span.operation, span.name) for span in run.spans]
    assert kinds == [
        ("invoke_agent", f"invoke_agent {run.name}"),
        ("invoke_agent", "invoke_agent think"),
        ("chat", "chat m"),
        ("invoke_agent", "invoke_agent tools"),
        ("execute_tool", "execute_tool get_weather"),
        ("execute_tool", "execute_tool get_weather"),
        ("invoke_agent", "invoke_agent think"),
        ("chat", "chat m"),
    ]
    root, think, first, tools, rome, oslo, again, last = run.spans
    assert {think.parent_id, tools.parent_id, again.parent_id} == {root.span_id}
    assert (first.parent_id, last.parent_id) == (think.span_id, again.span_id)
    assert {rome.parent_id, oslo.parent_id} == {tools.span_id}
    seen = {span.attributes["gen_ai.tool.call.id"]: span.attributes for span in (rome, oslo)}
    assert seen["call_rome"]["gen_ai.tool.call.arguments"] == {"city": "Rome"}
    assert seen["call_oslo"]["gen_ai.tool.call.result"] == "sunny in Oslo"
    assert first.attributes["gen_ai.tool.definitions"][0]["function"]["name"] == "get_weather"
    assert [message["role"] for message in run.messages()] == ["user", "assistant", "tool", "tool", "assistant"]
    assert run.messages()[-1] == said("assistant", "It is sunny in Rome and sunny in Oslo")
    assert all(span.ended_at and not span.error for span in run.spans)


AGENT_WAYS: dict[str, Any] = {
    "invoke": lambda a, q: a.invoke(q),
    "ainvoke": lambda a, q: a.ainvoke(q),
    "to_thread": lambda a, q: asyncio.to_thread(a.invoke, q),
    "astream_events": lambda a, q: a.astream_events(q, version="v2"),
    **{
        f"{way} {mode}": lambda a, q, way=way, mode=mode: getattr(a, way)(q, stream_mode=mode)
        for way in ("stream", "astream")
        for mode in ("values", "updates", "messages", "debug")
    },
}


@pytest.mark.parametrize("way", AGENT_WAYS)
async def test_a_graph_with_a_tool_node_is_told_whole(model: ChatOpenAI, captured: Captured, way: str) -> None:
    graph = agent(model)

    @art.trajectory(name="desk")
    async def handle() -> None:
        await _run(lambda _: AGENT_WAYS[way](graph, question("weather in Rome and Oslo")), model)

    await handle()
    await _check_agent(captured())


async def test_concurrent_agents_do_not_mix(model: ChatOpenAI, stored: Callable[[], Store]) -> None:
    graph = agent(model)

    @art.trajectory
    async def handle(city: str) -> str:
        answer = await graph.ainvoke(question(f"weather in {city}"))
        return str(answer["messages"][-1].content)

    cities = ["Rome", "Oslo", "Lima", "Bern"]
    assert await asyncio.gather(*map(handle, cities)) == [f"It is sunny in {city}" for city in cities]
    for run in stored().trajectories():
        assert len(run.spans) == 7
        (called,) = (span for span in run.spans if span.operation == "execute_tool")
        assert called.attributes["gen_ai.tool.call.arguments"] == {"city": run.input["city"]}


def test_agents_in_threads_that_are_decorated_themselves_do_not_mix(
    model: ChatOpenAI, stored: Callable[[], Store]
) -> None:
    graph = agent(model)

    @art.trajectory
    def handle(city: str) -> str:
        return str(graph.invoke(question(f"weather in {city}"))["messages"][-1].content)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(handle, ["Rome", "Oslo", "Lima", "Bern"]))
    for run in stored().trajectories():
        assert run.output == f"It is sunny in {run.input['city']}"
        assert len(run.spans) == 7


def test_a_tool_that_raises_is_a_failed_span_though_the_graph_goes_on(model: ChatOpenAI, captured: Captured) -> None:
    graph = agent(model)

    @art.trajectory
    def handle() -> Any:
        return graph.invoke(question("weather in Atlantis"))

    handle()
    (span,) = (span for span in captured().spans if span.operation == "execute_tool")
    assert span.error == "LookupError: no such city"
    assert span.attributes["gen_ai.tool.call.arguments"] == {"city": "Atlantis"}


def test_a_tool_called_directly_is_a_tool_span(home: Any, captured: Captured) -> None:
    @art.trajectory
    def handle() -> Any:
        return get_weather.invoke({"city": "Rome"})

    assert handle() == "sunny in Rome"
    root, span = captured().spans
    assert (span.name, span.parent_id) == ("execute_tool get_weather", root.span_id)
    assert span.attributes["gen_ai.tool.call.arguments"] == {"city": "Rome"}
    assert span.attributes["gen_ai.tool.call.result"] == "sunny in Rome"


def test_an_llm_call_inside_a_tool_is_the_tools_child(model: ChatOpenAI, captured: Captured) -> None:
    @tool
    def summarise(text: str) -> str:
        """Summarise."""
        return str(model.invoke(text).content)

    @art.trajectory
    def handle() -> Any:
        return summarise.invoke({"text": "hi"})

    assert handle() == "echo: hi"
    root, tool_span, call = captured().spans
    assert (tool_span.parent_id, call.parent_id) == (root.span_id, tool_span.span_id)


def test_a_raw_client_inside_a_graph_node_is_captured(api: StubApi, captured: Captured) -> None:
    client = openai.OpenAI(base_url=api.openai_url, api_key="x", max_retries=0)

    def think(state: State) -> dict[str, Any]:
        answer = client.chat.completions.create(model="raw", messages=[{"role": "user", "content": "hi"}])
        return {"messages": [AIMessage(answer.choices[0].message.content or "")]}

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    graph.add_edge("think", END)
    compiled = graph.compile()

    @art.trajectory
    def handle() -> Any:
        return compiled.invoke(question("hi"))["messages"][-1].content

    assert handle() == "echo: hi"
    assert [span.name for span in captured().spans[1:]] == ["invoke_agent think", "chat raw"]
    client.close()


def test_an_interrupt_is_no_error_and_the_resume_is_captured(model: ChatOpenAI, stored: Callable[[], Store]) -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"messages": [model.invoke(f"answer {interrupt('sure?')}")]}

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    compiled = graph.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}

    @art.trajectory(name="first")
    def first() -> None:
        compiled.invoke(question("hi"), config)

    @art.trajectory(name="second")
    def second() -> Any:
        return compiled.invoke(Command(resume="yes"), config)["messages"][-1].content

    first()
    assert second() == "echo: answer yes"
    store = stored()
    (before,) = store.trajectories(name="first")
    assert before.status == "interrupted"
    assert before.spans[1].error is None
    assert before.spans[1].attributes["art.status"] == "interrupted"
    (after,) = store.trajectories(name="second")
    assert [span.operation for span in after.spans] == ["invoke_agent", "invoke_agent", "chat"]


def test_a_graph_stream_that_is_left_early_leaves_no_run_open(model: ChatOpenAI, captured: Captured) -> None:
    graph = agent(model)

    @art.trajectory
    def handle() -> None:
        stream = graph.stream(question("weather in Rome"), stream_mode="messages")
        next(stream)
        stream.close()

    handle()
    assert captured().status == "finished"


async def test_a_graph_that_is_cancelled_leaves_no_run_open(model: ChatOpenAI, captured: Captured) -> None:
    started = asyncio.Event()

    async def think(state: State) -> dict[str, Any]:
        async for chunk in model.astream("long"):
            if chunk.content:
                started.set()
        return {"messages": []}

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    compiled = graph.compile()

    @art.trajectory
    async def handle() -> None:
        await compiled.ainvoke(question("hi"))

    task = asyncio.create_task(handle())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    run = captured()
    assert run.status == "cancelled"
    assert [span.error for span in run.spans] == [None] * len(run.spans)


# Off and outside


def test_outside_a_trajectory_nothing_is_recorded(model: ChatOpenAI, home: Any) -> None:
    from art_sdk.capture import journal

    assert agent(model).invoke(question("weather in Rome"))["messages"][-1].content == "It is sunny in Rome"
    assert journal.current() is None


def test_uninstrument_stops_spans_and_the_agent_still_works(model: ChatOpenAI, captured: Captured) -> None:
    @art.trajectory
    def handle() -> Any:
        return agent(model).invoke(question("weather in Rome"))["messages"][-1].content

    art.uninstrument()
    try:
        assert handle() == "It is sunny in Rome"
    finally:
        art.instrument()
    assert len(captured().spans) == 1


def test_a_users_own_callback_handler_still_gets_everything(model: ChatOpenAI, captured: Captured) -> None:
    from langchain_core.callbacks import BaseCallbackHandler

    class Mine(BaseCallbackHandler):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_chat_model_start(self, *_: Any, **__: Any) -> None:
            self.seen.append("start")

        def on_llm_new_token(self, *_: Any, **__: Any) -> None:
            self.seen.append("token")

        def on_llm_end(self, *_: Any, **__: Any) -> None:
            self.seen.append("end")

    mine = Mine()

    @art.trajectory
    def handle() -> None:
        list(model.stream("hi", config={"callbacks": [mine]}))
        model.invoke("hi", config={"callbacks": [mine]})

    handle()
    assert (mine.seen[0], mine.seen[-2:]) == ("start", ["start", "end"])
    assert mine.seen.count("end") == 2
    assert len(captured().spans) == 3
