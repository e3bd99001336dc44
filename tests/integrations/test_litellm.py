"""litellm's calls are captured at the HTTP client below it."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from stub_api import StubApi

import art_sdk as art
from art_sdk.store.reading import Span

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm = pytest.importorskip("litellm")

Calls = Callable[[], list[Span]]


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


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
