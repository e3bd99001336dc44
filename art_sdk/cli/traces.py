"""`art traces`: the trajectories, and one of them as a tree."""

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ..capture import spans as names
from ..store.reading import Span, Trajectory, count_by_status
from .console import StoreOption, console, existing_store, when

_COLORS = {"finished": "green", "failed": "red", "cancelled": "yellow", "abandoned": "yellow", "running": "cyan"}


def traces(
    trajectory: Annotated[str | None, typer.Argument(help="Show one as a tree: its id, or the start of it.")] = None,
    name: Annotated[str | None, typer.Option(help="Only of this function.")] = None,
    status: Annotated[str | None, typer.Option(help="Only with this status: finished, failed, …")] = None,
    policy: Annotated[str | None, typer.Option(help="Only answered by, or meant for, this policy.")] = None,
    version: Annotated[int | None, typer.Option(help="Only answered by this version.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Only with a reward of at least this.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Only with a reward of at most this.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only begun at this time or later.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only begun before this time.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    text: Annotated[str | None, typer.Option(help="Only with these words in a message. Slow.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only where this tool was called.")] = None,
    error: Annotated[str | None, typer.Option(help="Only whose error begins so: ValueError.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    store: StoreOption = None,
) -> None:
    """List trajectories, newest first, or show one of them as a tree."""
    with existing_store(store) as opened:
        if trajectory is not None:
            console.print(_tree(opened.trajectory(trajectory)))
            return
        table = Table(box=None, header_style="bold")
        for title in ("id", "started", "function", "status", "reward", "training"):
            table.add_column(title, justify="right" if title == "reward" else "left")
        for found in opened.trajectories(
            name=name,
            status=status,
            policy=policy,
            version=version,
            min_reward=min_reward,
            max_reward=max_reward,
            since=since,
            until=until,
            tag=tag,
            text=text,
            tool=tool,
            error=error,
            limit=limit,
        ):
            table.add_row(
                found.id[:12],
                when(found.started_at),
                found.name,
                Text(found.status, _COLORS.get(found.status, "")),
                "" if found.reward is None else f"{found.reward:.3g}",
                found.standing,
            )
        if table.row_count:
            console.print(table)
        elif total := sum(count_by_status(opened.database).values()):
            console.print(f"none of the {total} trajectories in {opened.database.name} is like that")
        else:
            console.print("no trajectories yet: run a function decorated with @art.trajectory")


def _tree(found: Trajectory) -> Tree:
    title = Text.assemble(
        (found.name, "bold"),
        "  ",
        (found.status, _COLORS.get(found.status, "")),
        f"  {found.id}  {when(found.started_at)}",
    )
    root = Tree(title)
    for label, value in (("input", found.input), ("output", found.output), ("error", found.error)):
        if value is not None:
            root.add(_field(label, value))
    for reward in found.rewards:
        on = f" on span {reward['span_id']}" if reward["span_id"] else ""
        root.add(_field("reward", f"{reward['value']:g} ({reward['name']}, from {reward['source']}){on}"))
    if fault := found.details.get(names.REWARD_ERROR):
        root.add(_field("reward function raised", fault))
    root.add(_field("training", found.standing))
    branches = {span.span_id: root for span in found.spans if span.parent_id is None}
    for span in found.spans:
        if span.parent_id is not None:
            branches[span.span_id] = _branch(branches.get(span.parent_id, root), span)
    for call in found.tool_calls:
        if call.state != "ran":
            branch = branches[call.asked_in.span_id].add(Text(f"{call.name}  {call.state}", "yellow"))
            branch.add(_field("arguments", call.arguments))
            if call.state == "answered":
                branch.add(_field("result", call.result))
    return root


def _branch(parent: Tree, span: Span) -> Tree:
    took = "…" if span.seconds is None else f"{span.seconds:.2f} s"
    style = "red" if span.error else "cyan" if span.operation in names.LLM_OPERATIONS else ""
    branch = parent.add(Text.assemble((span.name, style), (f"  {took}", "dim")))
    a = span.attributes
    if span.operation in names.LLM_OPERATIONS:
        for message in [*a.get("gen_ai.input.messages", [])[-1:], *a.get("gen_ai.output.messages", [])]:
            branch.add(_field(message.get("role", ""), _text(message)))
        if answered := a.get(names.RESPONSE_MODEL):
            branch.add(_field("answered by", answered))
    elif span.operation == names.EXECUTE_TOOL:
        branch.add(_field("arguments", a.get("gen_ai.tool.call.arguments")))
        branch.add(_field("result", a.get("gen_ai.tool.call.result")))
    if span.error:
        branch.add(_field("error", span.error))
    return branch


def _text(message: dict[str, Any]) -> str:
    return " ".join(str(part.get("content") or part.get("response") or part) for part in message.get("parts", []))


def _field(label: str, value: Any, width: int = 300) -> Text:
    shown = str(value)
    if len(shown) > width:
        shown = shown[:width] + "…"
    return Text.assemble((f"{label}: ", "dim"), shown)
