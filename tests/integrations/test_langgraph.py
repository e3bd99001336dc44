"""LangGraph in depth: interrupts, sub-graphs, agents as tools, middleware, raw clients in nodes, zero code."""

import asyncio
import gc
import operator
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import openai
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt
from stub_api import StubApi

import art_sdk as art
from art_sdk import settings
from art_sdk.capture import guard
from art_sdk.integrations.langchain import _handler
from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory

from .graphs import Text, conversation, graph

Captured = Callable[[], Trajectory]
Stored = Callable[[], Store]


pytestmark = pytest.mark.usefixtures("no_open_runs")


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


def tree(run: Trajectory) -> list[str]:
    """Each span with the names of those above it."""
    by_id = {span.span_id: span for span in run.spans}

    def path(span: Span) -> str:
        above = by_id.get(span.parent_id or "")
        return f"{path(above)} > {span.name}" if above and above.parent_id else span.name

    return sorted(path(span) for span in run.spans if span.parent_id)


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


# Interrupts


def asking() -> Any:
    def ask(state: Text) -> dict[str, str]:
        return {"text": interrupt("sure?")}

    return graph(ask=ask).compile(checkpointer=InMemorySaver())


def test_a_graph_that_waits_is_interrupted_and_its_resume_names_it(stored: Stored) -> None:
    app = asking()

    @art.trajectory(name="handle")
    def handle(given: Any, thread: str) -> Any:
        return app.invoke(given, conversation(thread))["text"]

    handle({"text": ""}, "a")
    handle({"text": ""}, "b")
    assert handle(Command(resume="yes"), "a") == "yes"
    resumed, other, first = stored().trajectories()
    assert [run.status for run in (first, other, resumed)] == ["interrupted", "interrupted", "finished"]
    assert resumed.details["art.resumes"] == first.id
    assert "art.resumes" not in other.details
    assert first.error is None
    assert [span.attributes.get("art.status") for span in first.spans] == ["interrupted", "interrupted"]


def test_a_graph_that_is_resumed_in_the_same_trajectory_is_finished(captured: Captured) -> None:
    app = asking()

    @art.trajectory
    def handle() -> Any:
        app.invoke({"text": ""}, conversation("c"))
        return app.invoke(Command(resume="yes"), conversation("c"))["text"]

    assert handle() == "yes"
    run = captured()
    assert run.status == "finished"
    assert [span.attributes.get("art.status") for span in run.spans] == ["finished", "interrupted", None]


def test_a_goto_of_a_parent_graph_is_no_interrupt(captured: Captured) -> None:
    def leave(state: Text) -> Any:
        return Command(goto="after", graph=Command.PARENT, update={"text": "left"})

    outer: StateGraph[Any] = StateGraph(Text)
    outer.add_node("inner", graph(leave=leave).compile(), destinations=("after",))
    outer.add_node("after", lambda state: {"text": state["text"] + "!"})
    outer.add_edge(START, "inner")
    outer.add_edge("after", END)
    app = outer.compile()

    @art.trajectory
    def handle() -> Any:
        return app.invoke({"text": ""})["text"]

    assert handle() == "left!"
    run = captured()
    assert run.status == "finished"
    assert [span.error for span in run.spans if span.error] == []
    assert tree(run) == ["invoke_agent after", "invoke_agent inner", "invoke_agent inner > invoke_agent leave"]


# Shapes


def test_a_sub_graphs_nodes_hang_under_the_node_that_it_is(model: ChatOpenAI, captured: Captured) -> None:
    inner = graph(think=lambda s: {"text": model.invoke(s["text"]).text}).compile()
    as_node = graph(sub=inner).compile()
    called = graph(calls=lambda s: inner.invoke(s)).compile()

    @art.trajectory
    def handle() -> None:
        as_node.invoke({"text": "hi"})
        called.invoke({"text": "hi"})

    handle()
    assert tree(captured()) == [
        "invoke_agent calls",
        "invoke_agent calls > invoke_agent think",
        "invoke_agent calls > invoke_agent think > chat m",
        "invoke_agent sub",
        "invoke_agent sub > invoke_agent think",
        "invoke_agent sub > invoke_agent think > chat m",
    ]


def test_branches_that_are_sent_out_are_beside_each_other(model: ChatOpenAI, captured: Captured) -> None:
    class Many(TypedDict):
        texts: Annotated[list[str], operator.add]

    made: StateGraph[Any] = StateGraph(Many)
    made.add_node("start", lambda s: {})
    made.add_node("think", lambda s: {"texts": [model.invoke(s["text"]).text]})
    made.add_edge(START, "start")
    made.add_conditional_edges("start", lambda s: [Send("think", {"text": f"t{n}"}) for n in range(3)], ["think"])
    app = made.compile()

    @art.trajectory
    def handle() -> Any:
        return app.invoke({"texts": []})["texts"]

    assert handle() == ["echo: t0", "echo: t1", "echo: t2"]
    assert tree(captured()) == ["invoke_agent start"] + ["invoke_agent think"] * 3 + ["invoke_agent think > chat m"] * 3


async def test_an_agent_with_middleware_and_tools(model: ChatOpenAI, captured: Captured) -> None:
    class Note(AgentMiddleware):
        async def abefore_model(self, state: Any, runtime: Any) -> None:
            return None

    agent = create_agent(model, [get_weather], middleware=[Note(), ToolRetryMiddleware(max_retries=1)])

    @art.trajectory
    async def handle() -> Any:
        return (await agent.ainvoke({"messages": [HumanMessage("weather in Rome and Oslo")]}))["messages"][-1].text

    assert await handle() == "It is sunny in Rome and sunny in Oslo"
    run = captured()
    tools = [span for span in run.spans if span.operation == "execute_tool"]
    assert sorted(span.attributes["gen_ai.tool.call.id"] for span in tools) == ["call_oslo", "call_rome"]
    assert [span.name for span in run.spans].count("chat m") == 2
    assert [call.state for call in run.tool_calls] == ["ran", "ran"]
    by_id = {span.span_id: span for span in run.spans}
    assert {by_id[span.parent_id or ""].name for span in tools} == {"invoke_agent tools"}


def test_an_agent_is_the_tool_of_another(model: ChatOpenAI, captured: Captured) -> None:
    helper = create_agent(model, [get_weather])

    @tool("get_weather")
    def ask_helper(city: str) -> str:
        """The weather of a city, by asking somebody."""
        return helper.invoke({"messages": [HumanMessage(f"weather in {city}")]})["messages"][-1].text

    agent = create_agent(model, [ask_helper])

    @art.trajectory
    def handle() -> Any:
        return agent.invoke({"messages": [HumanMessage("weather in Rome")]})["messages"][-1].text

    assert handle() == "It is It is sunny in Rome"
    outer = "invoke_agent tools > execute_tool get_weather"
    assert tree(captured()) == sorted(
        [
            "invoke_agent model",
            "invoke_agent model > chat m",
            "invoke_agent model",
            "invoke_agent model > chat m",
            "invoke_agent tools",
            outer,
            f"{outer} > invoke_agent model",
            f"{outer} > invoke_agent model > chat m",
            f"{outer} > invoke_agent model",
            f"{outer} > invoke_agent model > chat m",
            f"{outer} > invoke_agent tools",
            f"{outer} > invoke_agent tools > execute_tool get_weather",
        ]
    )


def test_a_tool_that_is_not_there_is_answered_and_seen(model: ChatOpenAI, captured: Captured) -> None:
    node = ToolNode([get_weather])
    asked = AIMessage("", tool_calls=[{"name": "fly", "args": {"to": "Rome"}, "id": "call_1"}])
    made: StateGraph[Any] = StateGraph(Chat)
    fake = GenericFakeChatModel(messages=iter([asked, AIMessage("no wings")]))
    made.add_node("think", lambda s: {"messages": [fake.invoke(s["messages"])]})
    made.add_node("tools", node)
    made.add_node("again", lambda s: {"messages": [fake.invoke(s["messages"])]})
    for one, other in ((START, "think"), ("think", "tools"), ("tools", "again"), ("again", END)):
        made.add_edge(one, other)
    app = made.compile()

    @art.trajectory
    def handle() -> Any:
        return app.invoke({"messages": [HumanMessage("fly")]})["messages"][-1].text

    assert handle() == "no wings"
    (call,) = captured().tool_calls
    assert (call.name, call.state) == ("fly", "answered")
    assert "fly is not a valid tool" in call.result


def test_parallel_runnables_in_threads_keep_their_parents(model: ChatOpenAI, captured: Captured) -> None:
    both = RunnableParallel(a=model, b=RunnableLambda(lambda text: model.invoke(text)))
    app = graph(both=lambda s: {"text": str(len(both.invoke(s["text"])))}).compile()

    @art.trajectory
    def handle() -> Any:
        return app.invoke({"text": "hi"})["text"]

    assert handle() == "2"
    assert tree(captured()) == ["invoke_agent both"] + ["invoke_agent both > chat m"] * 2


def test_a_retry_of_langchains_is_another_call(model: ChatOpenAI, captured: Captured) -> None:
    patient = model.with_retry(stop_after_attempt=3, wait_exponential_jitter=False)

    @art.trajectory
    def handle() -> Any:
        return patient.invoke("flaky langgraph").text

    assert handle() == "echo: flaky langgraph"
    first, second = captured().spans[1:]
    assert (first.error is None, second.error is None) == (False, True)


# Where things hang


@pytest.mark.parametrize("way", ["sync", "async", "thread", "sub-graph", "art.tool", "Command"])
async def test_a_raw_client_hangs_under_the_node_that_it_is_called_in(
    api: StubApi, captured: Captured, way: str
) -> None:
    client = openai.OpenAI(base_url=api.openai_url, api_key="x")
    aclient = openai.AsyncOpenAI(base_url=api.openai_url, api_key="x")
    said: Any = {"model": "raw", "messages": [{"role": "user", "content": "hi"}]}

    def ask() -> str:
        return client.chat.completions.create(**said).choices[0].message.content or ""

    def sync(state: Text) -> dict[str, str]:
        return {"text": ask()}

    async def asynchronous(state: Text) -> dict[str, str]:
        answer = await aclient.chat.completions.create(**said)
        return {"text": answer.choices[0].message.content or ""}

    def thread(state: Text) -> dict[str, str]:
        with ThreadPoolExecutor(1) as pool:
            return {"text": pool.submit(ask).result()}

    nodes: dict[str, Any] = {
        "sync": sync,
        "async": asynchronous,
        "thread": thread,
        "sub-graph": graph(node=sync).compile(),
        "art.tool": lambda s: {"text": art.tool(ask)()},
        "Command": lambda s: Command(update={"text": ask()}),
    }
    app = graph(node=nodes[way]).compile()

    @art.trajectory
    async def handle() -> Any:
        return (await app.ainvoke({"text": ""}))["text"]

    assert await handle() == "echo: hi"
    above = {"sub-graph": "invoke_agent node > invoke_agent node", "art.tool": "invoke_agent node > execute_tool ask"}
    assert f"{above.get(way, 'invoke_agent node')} > chat raw" in tree(captured())
    client.close()
    await aclient.close()


def test_a_decorated_function_in_a_node_is_a_trajectory_of_its_own(model: ChatOpenAI, stored: Stored) -> None:
    @art.trajectory(name="inner")
    def inner(text: str) -> str:
        return model.invoke(text).text

    app = graph(node=lambda s: {"text": inner(s["text"])}).compile()

    @art.trajectory(name="outer")
    def outer() -> Any:
        return app.invoke({"text": "hi"})["text"]

    assert outer() == "echo: hi"
    runs = {run.name: run for run in stored().trajectories()}
    assert tree(runs["outer"]) == ["invoke_agent node"]
    assert tree(runs["inner"]) == ["chat m"]
    assert runs["inner"].parent_id == runs["outer"].id


def test_a_graph_inside_a_plain_tool_hangs_under_it(model: ChatOpenAI, captured: Captured) -> None:
    app = graph(think=lambda s: {"text": model.invoke(s["text"]).text}).compile()

    @art.tool
    def consult(text: str) -> str:
        return app.invoke({"text": text})["text"]

    @art.trajectory
    def handle() -> str:
        return consult("hi")

    handle()
    top = "execute_tool consult"
    assert tree(captured()) == [top, f"{top} > invoke_agent think", f"{top} > invoke_agent think > chat m"]


# Models of any kind


class Plain(BaseChatModel):
    """A model without a `model` attribute, which says what it used."""

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        said = {"model_name": "plain-1", "finish_reason": "stop", "id": "r1"}
        message = AIMessage("fine", usage_metadata=usage, response_metadata=said)  # type: ignore[arg-type]
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_a_model_without_http_tells_what_it_used(captured: Captured) -> None:
    @art.trajectory
    def handle() -> str:
        return Plain().invoke("hi").text

    assert handle() == "fine"
    found = captured().spans[1].attributes
    assert found["art.http"] is False
    assert "art.cached" not in found
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (3, 2)
    assert (found["gen_ai.response.model"], found["gen_ai.response.id"]) == ("plain-1", "r1")
    assert found["gen_ai.response.finish_reasons"] == ["stop"]


async def test_an_answer_from_the_cache_is_marked(options: Any, captured: Captured) -> None:
    model = ChatOpenAI(model="m", temperature=0.5, cache=InMemoryCache(), **options)

    @art.trajectory
    async def handle() -> None:
        model.invoke("hi")
        model.invoke("hi")
        await model.ainvoke("hi")

    await handle()
    calls = captured().spans[1:]
    assert [call.attributes.get("art.cached") for call in calls] == [None, True, True]
    assert [call.attributes.get("art.http") for call in calls] == [None, False, False]
    assert {call.attributes["gen_ai.output.messages"][0]["parts"][0]["content"] for call in calls} == {"echo: hi"}
    assert {call.attributes["gen_ai.request.temperature"] for call in calls} == {0.5}


# Ends


async def test_what_a_cancelled_run_left_open_is_ended_as_cancelled(model: ChatOpenAI, captured: Captured) -> None:
    started = asyncio.Event()

    async def slow(state: Text) -> Any:
        started.set()
        await asyncio.sleep(60)

    app = graph(slow=slow).compile()

    @art.trajectory
    async def handle() -> None:
        await app.ainvoke({"text": ""})

    task = asyncio.ensure_future(handle())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    run = captured()
    assert run.status == "cancelled"
    assert all(span.ended_at for span in run.spans)
    assert [span.error for span in run.spans if span.error] == []


def test_runs_in_threads_that_outlive_the_trajectory_are_swept(model: ChatOpenAI, captured: Captured) -> None:
    started, go = threading.Event(), threading.Event()

    def waits(state: Text) -> dict[str, str]:
        started.set()
        return {"text": str(go.wait(10))}

    app = graph(waits=waits).compile()

    @art.trajectory
    def handle() -> threading.Thread:
        thread = threading.Thread(target=app.invoke, args=({"text": ""},))
        thread.start()
        assert started.wait(10)
        return thread

    thread = handle()
    go.set()
    thread.join()
    root, node = captured().spans
    assert (node.name, node.attributes["art.status"]) == ("invoke_agent waits", "cancelled")
    assert node.ended_at <= root.ended_at


def test_a_fault_of_the_handler_is_counted_and_costs_the_agent_nothing(
    model: ChatOpenAI, home: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(*_: Any) -> Any:
        raise LookupError("ours")

    monkeypatch.setattr(_handler, "_place", faulty)

    @art.trajectory
    def handle() -> str:
        return model.invoke("hi").text + model.invoke("hi").text

    assert handle() == "echo: hiecho: hi"
    assert guard.errors["SpanHandler.on_chat_model_start"] == 2
    assert len([record for record in caplog.records if "on_chat_model_start" in record.message]) == 1


@pytest.mark.slow
def test_memory_stays_flat(home: Any) -> None:
    app = graph(one=lambda s: s, two=lambda s: {"text": Plain().invoke(s["text"]).text}).compile()

    @art.trajectory
    def handle() -> None:
        app.invoke({"text": "x" * 1000})

    def grown(runs: int) -> int:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(runs):
            handle()
        assert art.flush(30)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    grown(50)
    tracemalloc.start()
    try:
        grown(50)
        assert grown(150) < 150 * 500  # a trajectory holds several kB while it runs
    finally:
        tracemalloc.stop()


# Zero code


@pytest.fixture
def auto(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_AUTO", "1")
    settings.reset()


@pytest.mark.usefixtures("auto")
def test_every_root_run_becomes_a_trajectory(model: ChatOpenAI, api: StubApi, stored: Stored) -> None:
    client = openai.OpenAI(base_url=api.openai_url, api_key="x")

    def raw(state: Text) -> dict[str, str]:
        said: Any = [{"role": "user", "content": state["text"]}]
        art.reward(0.5)
        return {"text": client.chat.completions.create(model="raw", messages=said).choices[0].message.content or ""}

    app = graph(think=lambda s: {"text": model.invoke(s["text"]).text}, raw=raw).compile()
    for word in ("a", "b"):
        app.invoke({"text": word})
    model.invoke("c")
    get_weather.invoke({"city": "Rome"})
    client.close()
    by_tool, by_model, second, first = stored().trajectories()
    assert [run.name for run in (first, second, by_model, by_tool)] == [
        *("LangGraph", "LangGraph"),
        *("chat m", "execute_tool get_weather"),
    ]
    assert {run.status for run in (first, second, by_model, by_tool)} == {"finished"}
    assert (first.input, first.output, first.reward) == ({"text": "a"}, {"text": "echo: echo: a"}, 0.5)
    for run in (first, second):
        assert tree(run) == [
            *("invoke_agent raw", "invoke_agent raw > chat raw"),
            *("invoke_agent think", "invoke_agent think > chat m"),
        ]
    assert tree(by_model) == ["chat m"]
    assert tree(by_tool) == ["execute_tool get_weather"]


@pytest.mark.usefixtures("auto")
async def test_concurrent_root_runs_do_not_mix(model: ChatOpenAI, stored: Stored) -> None:
    async def think(state: Text) -> dict[str, str]:
        await asyncio.sleep(0.01)
        return {"text": (await model.ainvoke(state["text"])).text}

    app = graph(think=think).compile()
    await asyncio.gather(*(app.ainvoke({"text": f"t{n}"}) for n in range(10)))
    app.with_config(max_concurrency=4)
    await app.abatch([{"text": f"t{n}"} for n in range(10, 20)])
    runs = list(stored().trajectories())
    assert sorted((run.input["text"], run.output["text"]) for run in runs) == sorted(
        (f"t{n}", f"echo: t{n}") for n in range(20)
    )
    assert all(len(run.spans) == 3 for run in runs)


@pytest.mark.usefixtures("auto")
def test_a_root_run_ends_as_it_ended(model: ChatOpenAI, stored: Stored) -> None:
    def fail(state: Text) -> Any:
        raise LookupError("no such order")

    with pytest.raises(LookupError):
        graph(fail=fail).compile().invoke({"text": ""})
    for _ in graph(one=lambda s: s, two=lambda s: s).compile().stream({"text": ""}):
        break
    asking().invoke({"text": ""}, conversation("e"))
    for chunk in model.stream("hi"):
        assert chunk is not None
    runs = list(stored().trajectories())
    assert [run.status for run in runs] == ["finished", "interrupted", "cancelled", "failed"]
    assert runs[-1].error == "LookupError: no such order"


@pytest.mark.usefixtures("auto")
def test_what_is_decorated_stays_as_it_is(model: ChatOpenAI, stored: Stored) -> None:
    @art.trajectory(name="handle")
    def handle() -> None:
        model.invoke("hi")

    handle()
    (run,) = stored().trajectories()
    assert (run.name, tree(run)) == ("handle", ["chat m"])


@pytest.mark.usefixtures("auto")
def test_without_a_trajectory_a_users_own_handler_still_gets_everything(model: ChatOpenAI) -> None:
    seen: list[str] = []

    class Mine(BaseCallbackHandler):
        def on_llm_end(self, response: Any, **_: Any) -> None:
            seen.append(response.generations[0][0].text)

    model.invoke("hi", config={"callbacks": [Mine()]})
    assert seen == ["echo: hi"]
