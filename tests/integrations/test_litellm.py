"""litellm's calls are captured at the HTTP client below it."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from stub_api import StubApi

import art_sdk as art
from art_sdk.store.reading import Span

from .said import said

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm = pytest.importorskip("litellm")

Calls = Callable[[], list[Span]]


def options(api: StubApi, model: str) -> dict[str, Any]:
    base = api.url if model.startswith("anthropic") else api.openai_url
    return {"model": model, "api_base": base, "api_key": "sk-secret", "num_retries": 0, "max_tokens": 9}


@pytest.mark.parametrize("model", ["openai/m", "anthropic/m", "hosted_vllm/m"])
def test_a_call_and_a_stream_are_one_span_each(api: StubApi, calls: Calls, model: str) -> None:
    @art.trajectory
    def handle() -> tuple[str, str]:
        messages = [{"role": "user", "content": "hi"}]
        whole = litellm.completion(messages=messages, **options(api, model))
        stream = litellm.completion(messages=messages, stream=True, **options(api, model))
        return whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)

    assert handle() == ("echo: hi", "echo: hi")
    spans = calls()
    assert [span.name for span in spans] == ["chat m", "chat m"]
    assert [span.attributes["gen_ai.output.messages"] for span in spans] == [[said("assistant", "echo: hi")]] * 2
    assert spans[1].attributes["art.stream.end"] == "done"


@pytest.mark.parametrize("model", ["openai/m", "anthropic/m", "hosted_vllm/m"])
async def test_an_async_call_and_stream_are_one_span_each(api: StubApi, calls: Calls, model: str) -> None:
    @art.trajectory
    async def handle() -> tuple[str, str]:
        messages = [{"role": "user", "content": "hi"}]
        whole = await litellm.acompletion(messages=messages, **options(api, model))
        stream = await litellm.acompletion(messages=messages, stream=True, **options(api, model))
        return whole.choices[0].message.content, "".join([c.choices[0].delta.content or "" async for c in stream])

    assert await handle() == ("echo: hi", "echo: hi")
    spans = calls()
    assert [span.attributes["gen_ai.output.messages"] for span in spans] == [[said("assistant", "echo: hi")]] * 2
    assert all(span.ended_at for span in spans)


def test_an_error_is_a_failed_span_and_litellms_own_exception(api: StubApi, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        litellm.completion(messages=[{"role": "user", "content": "fail"}], **options(api, "openai/m"), max_retries=0)

    with pytest.raises(litellm.InternalServerError):
        handle()
    (span,) = calls()
    assert span.error is not None


def router(api: StubApi, **more: Any) -> Any:
    names = {"first": "openai/fails", "second": "openai/m"}
    deployments = [
        {"model_name": name, "litellm_params": {"model": model, "api_base": api.openai_url, "api_key": "sk-secret"}}
        for name, model in names.items()
    ]
    return litellm.Router(deployments, **more)


def test_a_fallback_of_a_router_is_a_span_after_the_one_that_failed(api: StubApi, calls: Calls) -> None:
    given = router(api, num_retries=0, fallbacks=[{"first": ["second"]}])
    ask = [{"role": "user", "content": "flaky fallback"}]

    @art.trajectory
    def handle() -> Any:
        return given.completion("first", ask, max_retries=0).choices[0].message.content

    assert handle() == "echo: flaky fallback"
    failed, answered = calls()
    assert (failed.name, failed.attributes["error.type"]) == ("chat fails", "500")
    assert (answered.name, answered.error) == ("chat m", None)


async def test_an_async_router_that_retries_keeps_every_attempt(api: StubApi, calls: Calls) -> None:
    given = router(api, num_retries=1, retry_after=0)
    ask = [{"role": "user", "content": "flaky router"}]

    @art.trajectory
    async def handle() -> Any:
        return (await given.acompletion("second", ask, max_retries=0)).choices[0].message.content

    assert await handle() == "echo: flaky router"
    failed, answered = calls()
    assert failed.error is not None
    assert answered.attributes["gen_ai.output.messages"] == [said("assistant", "echo: flaky router")]


def test_attempts_of_the_client_below_are_one_span(api: StubApi, calls: Calls) -> None:
    ask = [{"role": "user", "content": "flaky litellm"}]

    @art.trajectory
    def handle() -> Any:
        answer = litellm.completion("openai/m", ask, api_base=api.openai_url, api_key="sk-secret", max_retries=2)
        return answer.choices[0].message.content

    assert handle() == "echo: flaky litellm"
    (span,) = calls()
    assert span.attributes["art.http.attempts"] == 2


async def test_tool_calls_and_usage_of_an_async_stream_are_kept(api: StubApi, calls: Calls) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]

    @art.trajectory
    async def handle() -> None:
        for model in ("openai/m", "hosted_vllm/m", "anthropic/m"):
            stream = await litellm.acompletion(
                messages=[{"role": "user", "content": "weather in Rome and Oslo"}],
                tools=tools,
                stream=True,
                stream_options={"include_usage": True},
                **options(api, model),
            )
            async for _ in stream:
                pass

    await handle()
    for span in calls():
        (message,) = span.attributes["gen_ai.output.messages"]
        assert [part["arguments"] for part in message["parts"]] == [{"city": "Rome"}, {"city": "Oslo"}]
        assert span.attributes["gen_ai.usage.output_tokens"] == 5


@pytest.mark.slow
def test_no_key_is_stored_with_retries_and_fallbacks(api: StubApi, calls: Calls, home: Any) -> None:
    given = router(api, num_retries=1, retry_after=0, fallbacks=[{"first": ["second"]}])

    @art.trajectory
    def handle() -> None:
        with pytest.raises(litellm.InternalServerError):
            given.completion("first", [{"role": "user", "content": "fail"}])

    handle()
    assert len(calls()) >= 2
    for file in home.rglob("*"):
        assert file.is_dir() or b"sk-secret" not in file.read_bytes()
