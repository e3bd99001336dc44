"""Runs an `art` command in this process and returns what it printed."""

from typer.testing import CliRunner

from art_sdk import cli


def invoke(*arguments: str) -> str:
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200"}).output
