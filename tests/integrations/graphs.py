"""Small graphs over one text."""

from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph


class Text(TypedDict):
    text: str


def graph(**nodes: Any) -> StateGraph[Any]:
    """A graph of nodes in a row."""
    made: StateGraph[Any] = StateGraph(Text)
    before = START
    for name, node in nodes.items():
        made.add_node(name, node)
        made.add_edge(before, name)
        before = name
    made.add_edge(before, END)
    return made


def conversation(name: str) -> Any:
    return {"configurable": {"thread_id": name}}
