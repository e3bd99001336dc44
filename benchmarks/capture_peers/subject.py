"""The measured program, run in a candidate's own environment: `python subject.py MEASUREMENT JSON`.

JSON has the candidate's name, the addresses of the API stub and of the sink, a folder for what is stored, and
the sizes of the measurement. The last line printed is the result, as JSON.
"""

import gc
import json
import os
import random
import select
import signal
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import candidates
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

SYSTEM = "You are the assistant of a travel agency. " * 25  # 1 kB, as system prompts go
_WORDS = (
    "the",
    "of",
    "order",
    "and",
    "to",
    "customer",
    "in",
    "ticket",
    "is",
    "that",
    "for",
    "it",
    "was",
    "refund",
    "as",
)


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: 18 degrees, light rain"


def chat_model(given: dict[str, Any]) -> ChatOpenAI:
    return ChatOpenAI(model="stub", base_url=f"{given['api']}/v1", api_key="stub", max_retries=0)


def switched_on(given: dict[str, Any]) -> candidates.Switched:
    return candidates.switch_on(given["candidate"], given["sink"], Path(given["home"]), given.get("delay", 0.0))


def agent_of(given: dict[str, Any], candidate: candidates.Switched) -> Any:
    """The LangGraph agent: a run makes two LLM calls and, in between, two tool calls."""
    import warnings

    from langgraph.prebuilt import create_react_agent

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is to move to another package
        graph = create_react_agent(chat_model(given), [get_weather], prompt=SYSTEM)
    config = {"callbacks": candidate.callbacks} if candidate.callbacks else None

    def handle(question: str) -> str:
        answer: str = graph.invoke({"messages": [HumanMessage(question)]}, config)["messages"][-1].content
        return answer

    return candidate.trajectory(handle)


def times(given: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each run and CPU seconds of the process for each; seconds of each LLM call, by size."""
    candidate = switched_on(given)
    handle = agent_of(given, candidate)
    for number in range(given["warm_up"]):
        answer = handle(f"{number}: weather in Rome and Oslo")
    assert "Rome: 18" in answer, answer
    assert "Oslo: 18" in answer, answer
    seconds, cpu = [], time.process_time()
    for number in range(given["runs"]):
        started = time.perf_counter()
        handle(f"{number}: how is the weather in Rome and Oslo")
        seconds.append(time.perf_counter() - started)
    cpu = (time.process_time() - cpu) / given["runs"]
    candidate.flush()
    return {
        "run": statistics.median(seconds),
        "run_mean": statistics.fmean(seconds),
        "run_cpu": cpu,
        "calls": {str(size): call_seconds(given, candidate, size) for size in given["message_bytes"]},
    }


def call_seconds(given: dict[str, Any], candidate: candidates.Switched, size: int) -> dict[str, float]:
    """Medians over LLM calls made in one run: on the clock, and of the caller's thread's CPU."""
    model = chat_model(given)
    config: Any = {"callbacks": candidate.callbacks} if candidate.callbacks else None
    drawn = random.Random(size)
    seconds, cpu = [], []

    def agent() -> None:
        for number in range(given["calls"]):
            messages = [HumanMessage(words(drawn, size)), AIMessage("Noted."), HumanMessage(f"number {number}")]
            started, cpu_started = time.perf_counter(), time.thread_time()
            model.invoke(messages, config)
            cpu.append(time.thread_time() - cpu_started)
            seconds.append(time.perf_counter() - started)

    candidate.trajectory(agent)()
    candidate.flush()
    return {"wall": statistics.median(seconds), "cpu": statistics.median(cpu)}


def words(drawn: random.Random, size: int) -> str:
    """Text of about so many bytes, each time another."""
    return " ".join(drawn.choices(_WORDS, k=size // 5))[:size]


def spans(given: dict[str, Any]) -> dict[str, Any]:
    """Many spans from several threads, by the candidate's own decorators: runs of one span and nine inside it."""
    candidate = switched_on(given)

    @candidate.step
    def step(number: int) -> int:
        return number

    @candidate.run
    def run(number: int) -> None:
        for each in range(9):
            step(each)

    runs = given["spans"] // given["threads"] // 10

    def work() -> None:
        for number in range(runs):
            run(number)

    started = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(given["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = time.perf_counter() - started
    candidate.flush()
    return {"spans": runs * 10 * given["threads"], "seconds": made, "flushed": time.perf_counter() - started}


def kills(given: dict[str, Any]) -> dict[str, Any]:
    """Fork a process that makes calls, kill it at a random moment, again and again: the ids of the calls that returned.

    A fork of this process, which has only imported libraries, is what a fresh one would be, 2 s sooner.
    """
    drawn = random.Random(given["seed"])
    returned: list[str] = []
    for _ in range(given["kills"]):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            make_calls(given, writer)
        os.close(writer)
        if os.read(reader, 1) != b"\n":  # capture is switched on
            raise RuntimeError(f"{given['candidate']}: the process to be killed did not begin")
        moment = time.monotonic() + drawn.uniform(*given["alive"])
        written = b""
        while (left := moment - time.monotonic()) > 0:
            if select.select([reader], [], [], left)[0]:
                if not (part := os.read(reader, 65536)):
                    raise RuntimeError(f"{given['candidate']}: the process to be killed ended by itself")
                written += part
        os.kill(child, signal.SIGKILL)
        while part := os.read(reader, 65536):
            written += part
        os.close(reader)
        os.waitpid(child, 0)
        returned += written.decode().split("\n")[:-1]  # what stands before the last line end was written whole
    return {"returned": returned}


def make_calls(given: dict[str, Any], writer: int) -> None:
    """Runs of three LLM calls, until killed. An id goes to the parent once its call has returned to this function."""
    try:
        candidate = switched_on(given)
        model = chat_model(given)
        config: Any = {"callbacks": candidate.callbacks} if candidate.callbacks else None

        @candidate.trajectory
        def agent() -> None:
            for _ in range(3):
                identity = f"call-{os.urandom(8).hex()}"
                model.invoke([HumanMessage(identity)], config)
                os.write(writer, f"{identity}\n".encode())

        os.write(writer, b"\n")
        while True:
            agent()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def memory(given: dict[str, Any]) -> dict[str, Any]:
    """Resident MB after the first tenth of the trajectories and after all."""
    candidate = switched_on(given)
    handle = agent_of(given, candidate)
    found = []
    for number in range(given["trajectories"]):
        handle(f"{number}: weather in Rome and Oslo")
        if number + 1 in (given["trajectories"] // 10, given["trajectories"]):
            candidate.flush()
            gc.collect()
            found.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
    return {"after_tenth": found[0], "after_all": found[1]}


def episode(given: dict[str, Any]) -> dict[str, Any]:
    """One run in which every turn sends the whole history again: bytes of what was said, each message once."""
    candidate = switched_on(given)
    model = chat_model(given)
    drawn = random.Random(0)
    history: list[Any] = []

    @candidate.trajectory
    def agent() -> None:
        for _ in range(given["turns"]):
            history.append(HumanMessage(words(drawn, given["message_bytes"])))
            history.append(model.invoke(history))

    agent()
    candidate.flush()
    return {"said": sum(len(message.content.encode()) for message in history)}


if __name__ == "__main__":
    measure = {"times": times, "spans": spans, "kills": kills, "memory": memory, "episode": episode}[sys.argv[1]]
    print(json.dumps(measure(json.loads(sys.argv[2]))))
