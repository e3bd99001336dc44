"""An order desk: a LangGraph agent that answers "where is my order?". It knows nothing of training.

    ticket ──► read (model) ──► look_up (tool) ──► reply (model) ──► answer

The model is whatever `OPENAI_BASE_URL` serves.
"""

import sqlite3
from pathlib import Path
from typing import Any, TypedDict

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

QUESTION = "Ticket: {ticket}\nCopy the order number out of the ticket."
ANSWER = "Order number: {order}"
READ: list[BaseMessage] = [
    HumanMessage(QUESTION.format(ticket="Hello, my order copper-willow is late, can you help?")),
    AIMessage(ANSWER.format(order="copper-willow")),
]
REPLY: list[BaseMessage] = [
    SystemMessage("You tell a customer the state of an order in one short sentence."),
    HumanMessage("Order: copper-willow\nState: lost"),
    AIMessage("Your order copper-willow is lost."),
]


class Desk(TypedDict, total=False):
    ticket: str
    order: str
    state: str
    reply: str


def build_agent(orders: Path, *, model: str = "order-desk", temperature: float = 1.0) -> Any:
    """The compiled graph: `agent.invoke({"ticket": text})` gives the order, its state and the reply."""
    llm = ChatOpenAI(model=model, temperature=temperature, max_tokens=20)

    @tool
    def order_status(order: str) -> str:
        """The state of an order, by its number."""
        connection = sqlite3.connect(f"file:{orders}?mode=ro", uri=True)
        try:
            row = connection.execute("SELECT state FROM orders WHERE id = ?", (order,)).fetchone()
        finally:
            connection.close()
        return row[0] if row else "no such order"

    def read(desk: Desk) -> Desk:
        answer = llm.invoke([*READ, HumanMessage(QUESTION.format(ticket=desk["ticket"]))])
        return {"order": answer.text.strip().removeprefix(ANSWER.format(order=""))}

    def look_up(desk: Desk) -> Desk:
        return {"state": order_status.invoke({"order": desk["order"]})}

    def reply(desk: Desk) -> Desk:
        answer = llm.invoke([*REPLY, HumanMessage(f"Order: {desk['order']}\nState: {desk['state']}")])
        return {"reply": answer.text.strip()}

    graph = StateGraph(Desk)
    for node in (read, look_up, reply):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "read")
    graph.add_edge("read", "look_up")
    graph.add_edge("look_up", "reply")
    graph.add_edge("reply", END)
    return graph.compile()
