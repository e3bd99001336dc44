"""`art up` in one process, an agent in another and in another folder, with nothing but the printed variables."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest
from sqlalchemy import select

import art_sdk as art
from art_sdk.capture.journal import read_frames
from art_sdk.capture.records import Completion
from art_sdk.store import Store, open_store, tables
from art_sdk.store.reading import Trajectory
from art_sdk.training.options import LoraOptions
from examples.tiny_model import tiny_model

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[1]
AGENT = """
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import art_sdk as art
from examples.order_desk.agent import build_agent
from examples.order_desk.tickets import Ticket, make_tickets, write_orders
from examples.order_desk.train import score

tickets, _ = make_tickets(seed=0)
write_orders(Path("orders.db"), tickets)
agent = build_agent(Path("orders.db"))

@art.trajectory
def handle(ticket: Ticket):
    desk = agent.invoke({"ticket": ticket.text})
    art.reward(score(desk, ticket))
    return desk

with ThreadPoolExecutor(8) as pool:
    while True:
        list(pool.map(handle, [ticket for ticket in tickets[:2] for _ in range(4)]))
        print("all answered", flush=True)
"""


def spawn_up(home: Path, *extra: str) -> "subprocess.Popen[str]":
    command = [str(Path(sys.executable).parent / "art"), "up", "--base-model", str(tiny_model())]
    command += ["--policy", "order-desk", "--home", str(home), "--rank", "8", "--learning-rate", "1e-3"]
    command += ["--groups-per-step", "2", "--batch-wait", "2", *extra]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_exports(up: "subprocess.Popen[str]") -> dict[str, str]:
    assert up.stdout is not None
    variables, lines = {}, []
    for line in up.stdout:
        lines.append(line)
        if match := re.fullmatch(r"export (\w+)=(\S+)\n", line):
            variables[match[1]] = match[2]
        if "Ctrl-C" in line:
            return variables
    pytest.fail("art up ended: " + "".join(lines))


@pytest.fixture
def up(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    process = spawn_up(tmp_path / "backend", "--max-model-len", getattr(request, "param", "256"))
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


def test_an_agent_elsewhere_is_trained_and_answered_by_newer_versions(
    up: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    variables = read_exports(up)
    assert variables.keys() >= {"OPENAI_BASE_URL", "OPENAI_API_KEY", "ART_STORE_URL"}
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    with (folder / "stderr").open("w") as stderr:
        agent = subprocess.Popen(
            [sys.executable, "agent.py"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(ROOT), **variables},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    versions: set[int] = set()
    assert agent.stdout is not None
    try:
        for _ in agent.stdout:
            with open_store(variables["ART_STORE_URL"]) as store:
                for version in (0, 1, 2):
                    if next(store.trajectories(version=version, limit=1), None) is not None:
                        versions.add(version)
            if 2 in versions:
                break
    finally:
        agent.kill()
        agent.wait()
    assert versions == {0, 1, 2}, (folder / "stderr").read_text()
    with open_store(variables["ART_STORE_URL"]) as store:
        finished = wait_for_completions(store)
        assert finished[0].completions[0].version == 0
        for run in finished:
            assert [c.policy for c in run.completions] == ["order-desk"] * 2
            assert [s.name for s in run.spans if s.operation == "execute_tool"] == ["execute_tool order_status"]
            assert run.reward is not None
            earlier = [other for other in finished if other.ended_at < run.started_at]
            before = max((c.version for other in earlier for c in other.completions), default=0)
            now, then = (c.version for c in run.completions)
            assert before <= now <= then, "a call was answered by an older version than one that had ended before it"
    assert not (folder / ".art").exists(), "what was captured went elsewhere than the variables say"

    processes = psutil.Process(up.pid).children(recursive=True)
    assert len(processes) >= 6  # worker, gateway and engine, each with its guard
    up.send_signal(signal.SIGKILL)  # nobody is left to clean up
    up.wait()
    assert not left_of(processes, wait=30)


def wait_for_completions(store: Store) -> list[Trajectory]:
    """The runs that have ended, oldest first. The gateway's journal reaches the store a moment after the agent's."""
    for _ in range(300):
        finished = list(store.trajectories(status="finished"))[::-1]
        if all(len(run.completions) == 2 for run in finished):
            return finished
        time.sleep(0.1)
    pytest.fail("not every run has a completion for each of its calls")


def left_of(processes: list[psutil.Process], wait: float) -> list[psutil.Process]:
    """Those that still run after so many seconds; one that only waits for init to take note of its end does not."""
    _, alive = psutil.wait_procs(processes, timeout=wait)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = spawn_up(tmp_path / "backend", "--port", str(port))
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"port {port}" in output
    assert "in use" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("up", ["2048"], indirect=True)  # room for an answer that is longer than the grace
def test_ctrl_c_ends_everything_with_a_stream_under_way(up: "subprocess.Popen[str]", tmp_path: Path) -> None:
    variables = read_exports(up)
    processes = psutil.Process(up.pid).children(recursive=True)
    client = openai.OpenAI(
        base_url=variables["OPENAI_BASE_URL"], api_key=variables["OPENAI_API_KEY"], max_retries=0, timeout=60
    )
    stream = client.chat.completions.create(
        model="order-desk",
        messages=[{"role": "user", "content": "Count from one to a thousand."}],
        max_tokens=1900,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    up.send_signal(signal.SIGINT)
    output, _ = up.communicate(timeout=120)
    assert up.returncode == 0, output
    assert "stopping" in output
    assert "Traceback" not in output
    assert not left_of(processes, wait=0)
    assert "aborted" in sampled(tmp_path / "backend"), "what was sampled until then is recorded"


def sampled(home: Path) -> list[str | None]:
    """The finish reasons of what the gateway recorded, whether it is in the store or still in its journal."""
    with open_store(f"sqlite:///{home / 'art.db'}") as store, store.database.read() as connection:
        stored = list(connection.execute(select(tables.completions.c.finish_reason)).scalars())
    waiting = [
        record.finish_reason
        for path in (home / "journal").glob("*.journal")
        for _, record in read_frames(path.read_bytes())
        if isinstance(record, Completion)
    ]
    return stored + waiting


def test_a_backend_that_was_left_by_an_exception_serves_again(tmp_path: Path) -> None:
    backend = art.LocalBackend(
        base_model=tiny_model(), policy="order-desk", home=tmp_path, lora=LoraOptions(rank=8), max_model_len=256
    )
    here = psutil.Process()
    before = set(here.children(recursive=True))

    def fail_inside() -> None:
        with backend:
            answer = openai.OpenAI().chat.completions.create(
                model="order-desk", messages=[{"role": "user", "content": "Hi"}], max_tokens=4
            )
            assert answer.model == "order-desk@0"
            raise LookupError("mine")

    for _ in range(2):
        with pytest.raises(LookupError, match="mine"):
            fail_inside()
        assert set(here.children(recursive=True)) <= before
        assert os.environ.get("OPENAI_BASE_URL") != backend.env["OPENAI_BASE_URL"]
