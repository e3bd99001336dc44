"""The whole loop on real parts: LangGraph agent, gateway, vLLM, trainer, store. One backend for all tests here.

The tests run in order: the first takes two training steps, the others look at what they left.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import psutil
import pytest
from sqlalchemy import select
from transformers import AutoTokenizer

import art_sdk as art
from art_sdk.capture import spans as names
from art_sdk.store import steps
from art_sdk.store import tables as t
from art_sdk.store.reasons import Reason
from art_sdk.store.steps import Step
from art_sdk.training.options import LoraOptions, TrainingOptions
from examples.order_desk.agent import build_agent
from examples.order_desk.tickets import Ticket, make_tickets, write_orders
from examples.tiny_model import tiny_model

pytestmark = pytest.mark.engine

GROUP_SIZE = 4
MISMATCH = 0.1
"""Nats a token between bf16 engine and fp32 trainer; 0.02 to 0.04 were measured."""


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[art.LocalBackend]:
    with art.LocalBackend(
        base_model=tiny_model(),
        policy="order-desk",
        home=tmp_path_factory.mktemp("home"),
        lora=LoraOptions(rank=8),
        training=TrainingOptions(learning_rate=1e-3),
        groups_per_step=2,
        batch_wait=30.0,  # a busy machine finishes the two groups seconds apart
        max_model_len=256,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def handle(backend: art.LocalBackend) -> Callable[[Ticket], dict[str, Any]]:
    orders = backend.options.home / "orders.db"
    write_orders(orders, make_tickets(0)[0])
    agent = build_agent(orders)

    @art.trajectory
    def handle(ticket: Ticket) -> dict[str, Any]:
        desk: dict[str, Any] = agent.invoke({"ticket": ticket.text})
        # Any reward that differs between runs will do: the test is about the loop, not about learning.
        art.reward(len(desk["reply"]) / 100 + (desk["order"] == ticket.order))
        return desk

    return handle


@pytest.fixture(scope="module")
def two_steps(backend: art.LocalBackend, handle: Callable[[Ticket], dict[str, Any]]) -> list[Step]:
    tickets = make_tickets(0)[0]
    made = []
    for number in range(2):
        art.rollouts_sync(handle, tickets[2 * number : 2 * number + 2], group_size=GROUP_SIZE)
        made.append(backend.wait_for_step(timeout=300))
    return made


def test_two_steps_make_two_versions(backend: art.LocalBackend, two_steps: list[Step]) -> None:
    assert [step.version for step in two_steps] == [1, 2]
    assert [version.status for version in backend.versions()] == ["retired", "retired", "live"]
    assert backend.live_version() == 2


def test_the_stored_completions_are_the_tokens_behind_the_text_that_the_agent_saw(
    backend: art.LocalBackend, two_steps: list[Step]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(backend.options.base_model)
    with art.open_store(backend.options.store_url) as store:
        trajectories = list(store.trajectories())
        assert len(trajectories) == 4 * GROUP_SIZE
        for trajectory in trajectories:
            calls = [span for span in trajectory.spans if span.operation == names.CHAT]
            assert len(calls) == 2
            assert len(trajectory.completions) == 2
            by_response = {completion.response_id: completion for completion in trajectory.completions}
            for call in calls:
                completion = by_response[call.attributes[names.RESPONSE_ID]]
                said = "".join(p["content"] for p in call.attributes["gen_ai.output.messages"][0]["parts"])
                assert tokenizer.decode(completion.token_ids, skip_special_tokens=True) == said
                asked = call.attributes["gen_ai.input.messages"][-1]["parts"][0]["content"]
                assert asked in tokenizer.decode(completion.prompt_ids)
                assert len(completion.logprobs) == len(completion.token_ids)
                assert all(logprob <= 0 for logprob in completion.logprobs)
            order = calls[0].attributes["gen_ai.output.messages"][0]["parts"]
            assert trajectory.output["order"] in "".join(part["content"] for part in order)


def test_every_response_says_which_version_made_it(backend: art.LocalBackend, two_steps: list[Step]) -> None:
    with art.open_store(backend.options.store_url) as store:
        answered = {}
        for trajectory in store.trajectories():
            for span in trajectory.spans:
                if span.operation == names.CHAT:
                    answered.setdefault(span.attributes[names.RESPONSE_MODEL], set()).add(trajectory.group_id)
            told = {
                span.attributes.get(names.RESPONSE_ID): span.attributes.get(names.RESPONSE_MODEL)
                for span in trajectory.spans
            }
            assert len(trajectory.completions) == 2
            assert all(told[c.response_id] == f"order-desk@{c.version}" for c in trajectory.completions)
    assert answered.keys() == {"order-desk@0", "order-desk@1"}
    assert [len(groups) for groups in answered.values()] == [2, 2]


def test_the_first_steps_ratio_is_one_within_the_mismatch_which_is_logged(
    backend: art.LocalBackend, two_steps: list[Step]
) -> None:
    metrics = two_steps[0].metrics
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=0.05)
    assert 0 < metrics["mismatch_abs"] < MISMATCH
    assert metrics["mismatch_kl"] < MISMATCH**2
    log = (backend.options.home / "logs" / "worker.log").read_text()
    assert f"mismatch {metrics['mismatch_abs']:.4f} nats" in log


def test_each_version_is_served_under_its_own_name_and_differs_from_the_base(
    backend: art.LocalBackend, two_steps: list[Step]
) -> None:
    client = openai.OpenAI()
    assert {model.id for model in client.models.list()} >= {
        "order-desk",
        "order-desk@0",
        "order-desk@1",
        "order-desk@2",
    }
    logprobs = {}
    # Each twice: the engine rounds in another way when it finds the prompt in its cache.
    for model in ("order-desk", "order-desk@0", "order-desk@1", "order-desk@2") * 2:
        messages: Any = [{"role": "user", "content": "Ticket: where is maple-olive?\nCopy the order number."}]
        answer = client.chat.completions.with_raw_response.create(
            model=model, messages=messages, max_tokens=8, temperature=0, logprobs=True
        )
        parsed = answer.parse()
        served = "order-desk@2" if model == "order-desk" else model
        assert parsed.model == answer.headers["x-art-version"] == served
        assert parsed.choices[0].logprobs is not None
        logprobs[model] = [token.logprob for token in parsed.choices[0].logprobs.content or ()]
    assert logprobs["order-desk"] == logprobs["order-desk@2"]
    first = [logprobs[f"order-desk@{version}"][0] for version in range(3)]
    assert len(set(first)) == 3


def test_the_groups_are_trained_on_exactly_once(backend: art.LocalBackend, two_steps: list[Step]) -> None:
    with backend.database.read() as connection:
        claims = connection.execute(select(t.claims.c.group_id, t.claims.c.status, t.claims.c.step)).all()
        outcomes = connection.execute(
            select(t.outcomes.c.trajectory_id, t.outcomes.c.version, t.outcomes.c.tokens)
        ).all()
        tokens = {row.trajectory_id: row.tokens for row in outcomes}
    assert [claim.status for claim in claims] == ["done"] * 4
    assert sorted(claim.step for claim in claims) == [1, 1, 2, 2]
    assert len(tokens) == len(outcomes) == 4 * GROUP_SIZE
    with art.open_store(backend.options.store_url) as store:
        for trajectory in store.trajectories():
            if tokens[trajectory.id]:
                assert tokens[trajectory.id] == sum(len(c.token_ids) for c in trajectory.completions)
    assert sum(tokens.values()) == sum(step.metrics["tokens"] for step in two_steps)


def test_another_process_reads_the_same_trajectories(backend: art.LocalBackend, two_steps: list[Step]) -> None:
    look = "[(t, t.messages(), t.spans, t.tool_calls, t.completions, t.rewards, t.standing) for t in s.trajectories()]"
    script = f"import art_sdk, sys\nwith art_sdk.open_store(sys.argv[1]) as s:\n    print(*{look}, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", script, backend.options.store_url], capture_output=True, text=True, check=True
    )
    with art.open_store(backend.options.store_url) as s:
        here = [str(found) for found in eval(look, {"s": s})]
    assert done.stdout.splitlines() == here
    assert len(here) == 4 * GROUP_SIZE


def test_a_step_with_nothing_to_learn_from_says_why(backend: art.LocalBackend, two_steps: list[Step]) -> None:
    client = openai.OpenAI()

    @art.trajectory(reward=lambda *_: 1.0)
    def same(question: str) -> str:
        messages: Any = [{"role": "user", "content": question}]
        answer = client.chat.completions.create(model="order-desk", messages=messages, max_tokens=4)
        return answer.choices[0].message.content or ""

    groups = art.rollouts_sync(same, ["one", "two"], group_size=2)
    step = backend.wait_for_step(timeout=120)
    assert step.version is None
    assert step.note is not None
    assert "2 of 2 groups zero_variance" in step.note
    log, note = backend.options.home / "logs" / "worker.log", step.note
    assert _eventually(lambda: note in log.read_text(), 10)
    with art.open_store(backend.options.store_url) as store:
        assert store.trajectory(groups[0].rollouts[0].trajectory_id or "").standing == Reason.ZERO_VARIANCE
    assert backend.live_version() == 2


def test_a_trajectory_without_tokens_of_the_policy_says_so(backend: art.LocalBackend, two_steps: list[Step]) -> None:
    @art.trajectory
    def thinks(question: str) -> str:
        art.reward(1.0)
        return question

    art.rollouts_sync(thinks, ["one", "two"], group_size=1)
    step = backend.wait_for_step(timeout=120)
    assert step.version is None
    assert step.note is not None
    assert "2 trajectories no_tokens" in step.note


def test_a_killed_engine_comes_back_with_its_adapters(backend: art.LocalBackend, two_steps: list[Step]) -> None:
    client = openai.OpenAI(max_retries=0)
    kill("vllm.entrypoints.openai.api_server", str(backend.options.engine_port))

    def ask() -> str | None:
        messages: Any = [{"role": "user", "content": "hello"}]
        try:
            return client.chat.completions.create(model="order-desk", messages=messages, max_tokens=2).model
        except openai.APIError:
            return None

    assert _eventually(lambda: ask() is None, 30), "the engine was not killed"
    assert _eventually(lambda: ask() == "order-desk@2", 180), "the engine did not come back with its adapters"


def test_a_killed_worker_goes_on_from_the_last_version(
    backend: art.LocalBackend, handle: Callable[[Ticket], dict[str, Any]], two_steps: list[Step]
) -> None:
    kill("art_sdk.backend.worker", str(backend.options.home / "order-desk.json"))
    art.rollouts_sync(handle, make_tickets(0)[0][4:6], group_size=GROUP_SIZE)
    step = backend.wait_for_step(timeout=300)
    assert step.version == 3
    assert steps.versions(backend.database, "order-desk")[-1].status == "live"


def kill(module: str, argument: str) -> None:
    """SIGKILL to the child that runs `module` with `argument`, not to its guard (-I)."""
    (found,) = [
        process
        for process in psutil.Process().children(recursive=True)
        if {module, argument} <= {*process.cmdline()} and "-I" not in process.cmdline()
    ]
    found.kill()


def _eventually(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.2)
    return False


def test_a_policy_is_served_from_one_folder_by_one_backend(backend: art.LocalBackend) -> None:
    second = art.LocalBackend(
        base_model=tiny_model(), policy="order-desk", home=backend.options.home, lora=LoraOptions(rank=8), set_env=False
    )
    with pytest.raises(art.ConfigError, match=f"already served by process {os.getpid()}"), second:
        pass
