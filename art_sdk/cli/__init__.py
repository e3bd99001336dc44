"""The `art` command: the loop without code, and a look into the store.

Each command is one file; none imports torch, litellm or vLLM.
"""

import logging
import sys

import typer

from ..errors import ArtError
from . import db, doctor, edit, explain, files, run, status, traces, up, versions
from .console import errors

app = typer.Typer(
    name="art",
    help="Capture agents, train them on their rewards, serve what they learned.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(up.up)
app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run.run)
app.command("status")(status.status)
app.command("traces")(traces.traces)
app.command("explain")(explain.explain)
app.command("versions")(versions.versions)
app.command("doctor")(doctor.doctor)
app.command("label")(edit.label)
app.command("delete")(edit.delete)
app.command("prune")(edit.prune)
app.command("export")(files.export)
app.command("import")(files.import_)
app.command("copy")(db.copy)
app.add_typer(db.db, name="db")


def main() -> None:
    """Run the command; what is wrong is said in one line, without a traceback."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        app()
    except ArtError as error:
        errors.print(f"art: {error}", style="red", highlight=False)
        sys.exit(1)
