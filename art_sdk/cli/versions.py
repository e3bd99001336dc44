"""`art versions`: what each step made, and which version answers."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..store import steps
from .console import NO_POLICY, StoreOption, console, existing_store, known_policy, when

_COLORS = {"live": "green", "rejected": "red", "candidate": "cyan"}


def versions(
    policy: Annotated[str | None, typer.Argument(help="One policy; all by default.")] = None, store: StoreOption = None
) -> None:
    """List the versions of a policy, with the step that made each."""
    with existing_store(store) as opened:
        database = opened.database
        policies = [known_policy(database, policy)] if policy else steps.policies(database)
        if not policies:
            console.print(NO_POLICY)
        for name in policies:
            found = steps.versions(database, name)
            made = {step.version: step for step in steps.steps(database, name)}
            table = Table(box=None, header_style="bold", title=name, title_justify="left")
            for title in ("version", "status", "made", "reward", "tokens", "ratio", "folder or note"):
                table.add_column(title, justify="right" if title in ("reward", "tokens", "ratio") else "left")
            for version in found:
                metrics = made[version.version].metrics if version.version in made else {}
                table.add_row(
                    version.name,
                    Text(version.status, _COLORS.get(version.status, "")),
                    when(version.created_at),
                    _number(metrics.get("reward_mean"), ".3f"),
                    _number(metrics.get("tokens"), ".0f"),
                    _number(metrics.get("ratio_mean"), ".4f"),
                    version.note or version.path or "the base model",
                )
            console.print(table)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
