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

import psutil
import pytest

from examples.tiny_model import tiny_model

pytestmark = pytest.mark.engine

AGENT = """
import time
import openai
import art_sdk as art

client = openai.OpenAI()

@art.trajectory
def handle(ticket: str) -> str:
    answer = client.chat.completions.create(
        model="order-desk", messages=[{"role": "user", "content": ticket}], max_tokens=12, temperature=1.0
    )
    text = answer.choices[0].message.content or ""
    art.reward(len(text) / 100)
    print(answer.model, flush=True)
    return text

started = time.monotonic()
while time.monotonic() - started < 300:
    for number in range(4):
        handle(f"Where is my order number {number}?")
    time.sleep(0.2)
"""


def spawn_up(home: Path, *extra: str) -> "subprocess.Popen[str]":
    command = [str(Path(sys.executable).parent / "art"), "up", "--base-model", str(tiny_model())]
    command += ["--policy", "order-desk", "--home", str(home), "--rank", "8", "--learning-rate", "1e-3"]
    command += ["--groups-per-step", "4", "--batch-wait", "2", "--max-model-len", "256", *extra]
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
def up(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = spawn_up(tmp_path / "backend")
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
    agent = subprocess.Popen(
        [sys.executable, "agent.py"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    answered: list[str] = []
    assert agent.stdout is not None
    try:
        for line in agent.stdout:
            answered.append(line.strip())
            if answered[-1] not in ("order-desk@0", "order-desk@1"):
                break
    finally:
        agent.kill()
        agent.wait()
    assert answered[0] == "order-desk@0"
    assert answered[-1] == "order-desk@2"
    numbers = [int(name.partition("@")[2]) for name in answered]
    assert numbers == sorted(numbers), "a call was answered by an older version than the one before"
    assert not (folder / ".art").exists(), "what was captured went elsewhere than the variables say"

    processes = psutil.Process(up.pid).children(recursive=True)
    assert len(processes) >= 6  # worker, gateway and engine, each with its guard
    up.send_signal(signal.SIGKILL)  # nobody is left to clean up
    up.wait()
    deadline = time.monotonic() + 30
    while any(process.is_running() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [process for process in processes if process.is_running()]


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
