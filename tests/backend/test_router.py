"""A policy's name follows its live version; nothing else ever answers for it."""

import pytest

from art_sdk.backend.router import PolicyRouter, Route, UnknownModel
from art_sdk.errors import EngineError


@pytest.fixture
def router() -> PolicyRouter:
    router = PolicyRouter("http://127.0.0.1:1", "key")
    for name in ("support@0", "support@1"):
        router.serve(name)
    router.flip("support", "support@0")
    return router


async def test_a_policy_is_answered_by_the_version_it_was_flipped_to(router: PolicyRouter) -> None:
    assert await router.pick("support") == Route("support@0", "http://127.0.0.1:1/v1", "key")
    router.flip("support", "support@1")
    assert (await router.pick("support")).name == "support@1"
    assert router.live("support") == "support@1"


async def test_a_version_is_answered_by_its_own_name_whatever_is_live(router: PolicyRouter) -> None:
    router.flip("support", "support@1")
    assert (await router.pick("support@0")).name == "support@0"


async def test_policies_are_flipped_independently(router: PolicyRouter) -> None:
    router.flip("triage", "support@1")
    assert (await router.pick("support")).name == "support@0"
    assert (await router.pick("triage")).name == "support@1"


async def test_an_unknown_name_is_refused_with_the_names_that_are_served(router: PolicyRouter) -> None:
    with pytest.raises(UnknownModel, match="support, support@0, support@1"):
        await router.pick("gpt-5")


async def test_a_retired_version_is_answered_no_longer(router: PolicyRouter) -> None:
    router.retire("support@1")
    assert router.names() == ["support", "support@0"]
    with pytest.raises(UnknownModel):
        await router.pick("support@1")


def test_the_live_version_cannot_be_retired(router: PolicyRouter) -> None:
    with pytest.raises(EngineError, match="support@0 is live for support"):
        router.retire("support@0")


def test_a_policy_cannot_be_flipped_to_what_is_not_served(router: PolicyRouter) -> None:
    with pytest.raises(UnknownModel, match="support@9 is not served"):
        router.flip("support", "support@9")
    assert router.live("support") == "support@0"


async def test_serving_a_name_twice_changes_nothing(router: PolicyRouter) -> None:
    router.serve("support@0")
    assert router.names() == ["support", "support@0", "support@1"]
    assert (await router.pick("support")).name == "support@0"
