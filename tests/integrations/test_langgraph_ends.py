"""Ends that no callback of LangChain tells of: breakpoints, caches, races, runs that were not sampled."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import FakeListChatModel
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from stub_api import StubApi

import art_sdk as art
from art_sdk import settings
from art_sdk.capture import runs
from art_sdk.store import Store
from art_sdk.store.reading import Trajectory

from .graphs import Text, conversation, graph

Captured = Callable[[], Trajectory]
Stored = Callable[[], Store]


pytestmark = pytest.mark.usefixtures("no_open_runs")


def asking() -> Any:
    return graph(ask=lambda s: {"text": interrupt("sure?")}).compile(checkpointer=InMemorySaver())


# Interrupts


@pytest.mark.parametrize("where", [{"interrupt_before": ["b"]}, {"interrupt_after": ["a"]}])
@pytest.mark.parametrize("way", ["sync", "async", "stream"])
async def test_a_graph_that_stops_at_a_breakpoint_is_interrupted(stored: Stored, where: Any, way: str) -> None:
    app = graph(a=lambda s: s, b=lambda s: {"text": "done"}).compile(checkpointer=InMemorySaver(), **where)
    thread = conversation(f"breakpoint {way} {where}")

    @art.trajectory(name="handle")
    async def handle(given: Any) -> None:
        if way == "async":
            await app.ainvoke(given, thread)
        elif way == "stream":
            list(app.stream(given, thread))
        else:
            app.invoke(given, thread)

    await handle({"text": ""})
    await handle(None)
    resumed, first = stored().trajectories()
    assert (first.status, resumed.status) == ("interrupted", "finished")
    assert resumed.details["art.resumes"] == first.id


def test_an_error_after_an_interrupt_is_how_the_run_ended(captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        asking().invoke({"text": ""}, conversation("then fails"))
        raise ValueError("no such order")

    with pytest.raises(ValueError, match="no such order"):
        handle()
    assert (captured().status, captured().error) == ("failed", "ValueError: no such order")


def test_a_stream_left_when_its_graph_waits_is_interrupted(captured: Captured) -> None:
    @art.trajectory
    def handle() -> Any:
        yield from asking().stream({"text": ""}, conversation("left"))

    chunks = handle()
    assert "__interrupt__" in next(chunks)
    chunks.close()
    assert captured().status == "interrupted"


def test_a_decorated_function_that_interrupts_its_graph_is_interrupted(stored: Stored) -> None:
    @art.trajectory(name="inner")
    def inner() -> str:
        return str(interrupt("sure?"))

    app = graph(ask=lambda s: {"text": inner()}).compile(checkpointer=InMemorySaver())

    @art.trajectory(name="outer")
    def outer() -> None:
        app.invoke({"text": ""}, conversation("decorated"))

    outer()
    found = {run.name: (run.status, run.error) for run in stored().trajectories()}
    assert found == {"outer": ("interrupted", None), "inner": ("interrupted", None)}


# Models


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_text_models_answers_from_the_cache_are_marked(api: StubApi, captured: Captured, way: str) -> None:
    text = OpenAI(model="t", base_url=api.openai_url, api_key="x", cache=InMemoryCache())  # type: ignore[arg-type]

    @art.trajectory
    async def handle() -> None:
        for prompts in (["a"], ["a", "b"]):
            await text.agenerate(prompts) if way == "async" else text.generate(prompts)

    await handle()
    found = [span.attributes for span in captured().spans[1:]]
    told = [(a["gen_ai.output.messages"][0]["parts"][0]["content"], a.get("art.cached")) for a in found]
    assert sorted(told, key=str) == [("echo: a", None), ("echo: a", True), ("echo: b", None)]
    assert len(api.requests) == 2


class Twice(BaseChatModel):
    """Asks two other models for each answer."""

    client: Any

    @property
    def _llm_type(self) -> str:
        return "twice"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        for name in ("first", "second"):
            said = [{"role": "user", "content": name}]
            answer = self.client.chat.completions.create(model=name, messages=said).choices[0].message.content
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answer))])


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream"])
async def test_each_call_that_a_model_makes_is_a_span(api: StubApi, captured: Captured, way: str) -> None:
    client = openai.OpenAI(base_url=api.openai_url, api_key="x")
    model = Twice(client=client)

    @art.trajectory
    async def handle() -> None:
        if way == "ainvoke":
            await model.ainvoke("hi")
        elif way == "stream":
            list(model.stream("hi"))
        else:
            model.invoke("hi")

    await handle()
    client.close()
    outer, inner = captured().spans[1:]
    told = [span.attributes["gen_ai.output.messages"][0]["parts"][0]["content"] for span in (outer, inner)]
    assert told == ["echo: first", "echo: second"]
    assert inner.parent_id == outer.span_id
    assert outer.attributes["gen_ai.response.id"] != inner.attributes["gen_ai.response.id"]


# Many at once


@pytest.mark.slow
def test_trajectories_that_end_while_others_run_are_swept(stored: Stored) -> None:
    fake = FakeListChatModel(responses=["x"])
    app = graph(one=lambda s: s, two=lambda s: {"text": fake.invoke("q").text}).compile()

    @art.trajectory
    def handle(_: int) -> None:
        app.invoke({"text": ""})

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(handle, range(600)))
    finally:
        sys.setswitchinterval(before)
    assert len(list(stored().trajectories())) == 600  # `stored` sees to it that no hook failed


# What was not sampled


@pytest.mark.parametrize("root", ["model", "stream", "tool", "raw client", "decorated"])
def test_nothing_inside_a_root_that_was_not_sampled_is_a_trajectory(
    model: ChatOpenAI, api: StubApi, stored: Stored, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.setenv("ART_AUTO", "1")
    settings.reset()
    first_only = iter([False])
    monkeypatch.setattr(runs, "_sampled", lambda rate, slot, parent: parent.open if parent else next(first_only, True))
    client = openai.OpenAI(base_url=api.openai_url, api_key="x")

    @tool
    def consult(text: str) -> str:
        """Ask a model."""
        return model.invoke(text).text

    def raw(state: Text) -> dict[str, str]:
        client.chat.completions.create(model="raw", messages=[{"role": "user", "content": "hi"}])
        return {"text": model.invoke("hi").text}

    decorated = art.trajectory(lambda state: {"text": model.invoke("hi").text})
    roots: dict[str, Callable[[], Any]] = {
        "model": lambda: model.invoke("hi"),
        "stream": lambda: list(model.stream("hi")),
        "tool": lambda: consult.invoke({"text": "hi"}),
        "raw client": lambda: graph(node=raw).compile().invoke({"text": "hi"}),
        "decorated": lambda: graph(node=decorated).compile().invoke({"text": "hi"}),
    }
    roots[root]()
    client.close()
    assert api.requests
    assert list(stored().trajectories()) == []
