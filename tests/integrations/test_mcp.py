"""Tool calls through MCP client sessions, against a real server in this process and in another."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams

import art_sdk as art
from art_sdk.store.reading import Span, Trajectory

server = MCPServer("weather")


@server.tool()
def forecast(city: str) -> dict[str, Any]:
    return {"city": city, "degrees": 21}


@server.tool(structured_output=False)
def greet(name: str) -> str:
    if name == "nobody":
        raise ToolError("nobody is there")
    return f"hello {name}"


@server.tool()
async def wait() -> str:
    await anyio.sleep(60)
    return "too late"


if __name__ == "__main__":
    server.run()


@asynccontextmanager
async def connected() -> AsyncIterator[ClientSession]:
    async with create_client_server_memory_streams() as (client, served), anyio.create_task_group() as group:
        low = server._lowlevel_server
        group.start_soon(low.run, *served, low.create_initialization_options())
        async with ClientSession(*client) as session:
            await session.initialize()
            yield session
        group.cancel_scope.cancel()


@pytest.fixture
def tools(captured: Callable[[], Trajectory]) -> Callable[[], list[Span]]:
    return lambda: [span for span in captured().spans if span.operation == "execute_tool"]


async def test_a_tool_call_has_its_name_arguments_and_result(tools: Callable[[], list[Span]]) -> None:
    async with connected() as session:
        with art.trajectory_scope("run"):
            result = await session.call_tool("greet", {"name": "Ada"})
    assert result.content[0].text == "hello Ada"  # type: ignore[union-attr]
    (span,) = tools()
    assert (span.name, span.error) == ("execute_tool greet", None)
    assert span.attributes["gen_ai.tool.name"] == "greet"
    assert span.attributes["gen_ai.tool.call.arguments"] == {"name": "Ada"}
    assert span.attributes["gen_ai.tool.call.result"] == {"content": [{"type": "text", "text": "hello Ada"}]}
    assert span.ended_at is not None


async def test_structured_content_is_kept_beside_the_text(tools: Callable[[], list[Span]]) -> None:
    async with connected() as session:
        with art.trajectory_scope("run"):
            await session.call_tool(name="forecast", arguments={"city": "Rome"})
    result = tools()[0].attributes["gen_ai.tool.call.result"]
    assert result["structuredContent"] == {"city": "Rome", "degrees": 21}
    assert result["content"][0]["type"] == "text"


async def test_an_error_that_the_tool_answers_with_is_a_tool_error(tools: Callable[[], list[Span]]) -> None:
    async with connected() as session:
        with art.trajectory_scope("run"):
            result = await session.call_tool("greet", {"name": "nobody"})
    assert result.is_error
    (span,) = tools()
    assert span.attributes["error.type"] == "tool_error"
    assert "nobody is there" in span.attributes["gen_ai.tool.call.result"]["content"][0]["text"]


async def test_an_error_that_the_session_raises_fails_the_call_and_passes_on(tools: Callable[[], list[Span]]) -> None:
    async with connected() as session:
        with art.trajectory_scope("run"), pytest.raises(MCPError) as raised:
            await session.call_tool("wait", read_timeout_seconds=0.01)
    (span,) = tools()
    assert span.attributes["error.type"] == "MCPError"
    assert str(raised.value) in (span.error or "")


async def test_a_call_that_is_not_waited_for_is_cancelled(tools: Callable[[], list[Span]]) -> None:
    async with connected() as session:
        with art.trajectory_scope("run"):
            call = asyncio.ensure_future(session.call_tool("wait"))
            await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
    (span,) = tools()
    assert (span.attributes["art.status"], span.error) == ("cancelled", None)


async def test_calls_at_once_are_a_span_each(tools: Callable[[], list[Span]]) -> None:
    async with connected() as session:
        with art.trajectory_scope("run"):
            await asyncio.gather(*(session.call_tool("greet", {"name": name}) for name in "abc"))
    named = [span.attributes["gen_ai.tool.call.arguments"]["name"] for span in tools()]
    assert sorted(named) == ["a", "b", "c"]
    assert len({span.parent_id for span in tools()}) == 1


async def test_the_client_of_version_2_makes_one_span_of_a_call(tools: Callable[[], list[Span]]) -> None:
    async with Client(server) as client:
        with art.trajectory_scope("run"):
            await client.call_tool("greet", {"name": "Ada"})
    assert [span.name for span in tools()] == ["execute_tool greet"]


async def test_a_langchain_tool_that_hands_the_call_on_has_one_span(tools: Callable[[], list[Span]]) -> None:
    from langchain_core.tools import StructuredTool

    async with connected() as session:

        async def call(name: str) -> Any:
            return (await session.call_tool("greet", {"name": name})).content[0].text  # type: ignore[union-attr]

        tool = StructuredTool.from_function(coroutine=call, name="greet", description="Greets.")
        with art.trajectory_scope("run"):
            assert await tool.ainvoke({"name": "Ada"}) == "hello Ada"
    (span,) = tools()
    assert span.attributes["gen_ai.tool.call.result"] == "hello Ada"


async def test_a_tool_that_calls_another_through_mcp_is_its_parent(tools: Callable[[], list[Span]]) -> None:
    async with connected() as session:

        @art.tool
        async def welcome() -> None:
            await session.call_tool("greet", {"name": "Ada"})

        with art.trajectory_scope("run"):
            await welcome()
    outer, inner = tools()
    assert (outer.name, inner.name, inner.parent_id) == ("execute_tool welcome", "execute_tool greet", outer.span_id)


@pytest.mark.slow
async def test_a_server_in_another_process_is_called_the_same(tools: Callable[[], list[Span]]) -> None:
    there = StdioServerParameters(command=sys.executable, args=[__file__])
    async with stdio_client(there) as streams, ClientSession(*streams) as session:
        await session.initialize()
        with art.trajectory_scope("run"):
            await session.call_tool("greet", {"name": "Ada"})
    assert [span.attributes["gen_ai.tool.call.arguments"] for span in tools()] == [{"name": "Ada"}]


async def test_outside_a_trajectory_and_with_the_switch_off_nothing_is_recorded(
    tools: Callable[[], list[Span]],
) -> None:
    async with connected() as session:
        await session.call_tool("greet", {"name": "Ada"})
        with art.trajectory_scope("run"):
            art.uninstrument()
            try:
                await session.call_tool("greet", {"name": "Ada"})
            finally:
                art.instrument()
    assert tools() == []
