import math
from typing import Any

import pytest

from art_sdk.store.batch import Member
from art_sdk.store.reasons import Reason
from art_sdk.training.options import TrainingOptions
from art_sdk.training.tokens import Selection, select

from .build import completion, group, member

OPTIONS = TrainingOptions(max_staleness=2, max_tokens_per_call=8)


def _select(*groups: Any, version: int = 0) -> Selection:
    return select(groups, current_version=version, options=OPTIONS)


def _reasons(selection: Selection) -> dict[str, Reason | None]:
    return {outcome.trajectory_id: outcome.reason for outcome in selection.left_out}


@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        (member("x", 1.0, status="error"), Reason.FAILED),
        (member("x", None), Reason.NO_REWARD),
        (member("x", math.nan), Reason.NO_REWARD),
        (member("x", 1.0, masked=True), Reason.MASKED),
        (member("x", 1.0, completions=()), Reason.NO_TOKENS),
        (member("x", 1.0, completions=(completion(tokens=[]),)), Reason.NO_TOKENS),
        (member("x", 1.0, completions=(completion(logprobs=[-1.0]),)), Reason.NO_TOKENS),
        (member("x", 1.0, completions=(completion(logprobs=[-1.0, math.nan]),)), Reason.NO_TOKENS),
        (member("x", 1.0, completions=(completion(version=7),)), Reason.TOO_STALE),
        (member("x", 1.0, completions=(completion(version=10), completion(version=7))), Reason.TOO_STALE),
        (member("x", 1.0, completions=(completion(version=9, prompt=[1] * 7),)), Reason.TOO_LONG),
        (member("x", None, status="error", masked=True), Reason.FAILED),
    ],
)
def test_a_trajectory_that_cannot_be_learned_from_has_the_first_reason_that_holds(
    left_out: Member, reason: Reason
) -> None:
    good = completion(version=10)
    selection = _select(group(left_out, member("a", 0.0, (good,)), member("b", 1.0, (good,))), version=10)
    assert _reasons(selection) == {"x": reason}
    assert [candidate.trajectory_id for candidate in selection.groups[0]] == ["a", "b"]


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_p": 0.9},
        {"top_k": 20},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.5},
        {"presence_penalty": -0.5},
        {"logit_bias": {"5": 3}},
        {"temperature": 0},
        {"min_tokens": 4},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_sampling_that_the_softmax_does_not_follow_is_unsupported(sampling: dict[str, Any]) -> None:
    bad = member("x", 1.0, (completion(), completion(sampling=sampling)))
    assert _reasons(_select(group(bad, member("a", 0.0), member("b", 1.0)))) == {"x": Reason.UNSUPPORTED_SAMPLING}


def test_neutral_parameters_are_supported_and_temperature_travels_with_the_call() -> None:
    sampling = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "logit_bias": None, "max_tokens": 5, "n": 2}
    (selected,) = _select(group(member("a", 0.0, (completion(sampling=sampling),)), member("b", 1.0))).groups
    assert [candidate.calls[0].temperature for candidate in selected] == [0.7, 1.0]


def test_a_call_without_tokens_is_skipped_and_the_others_stay() -> None:
    mixed = member("a", 0.0, (completion(tokens=[]), completion(tokens=[9])))
    (selected,) = _select(group(mixed, member("b", 1.0))).groups
    assert [call.token_ids for call in selected[0].calls] == [(9,)]


def test_a_group_keeps_those_that_can_be_learned_from() -> None:
    selection = _select(
        group(member("a", 0.5), member("b", 0.5)),
        group(member("c", 1.0), member("failed", 1.0, status="error")),
        group(member("lost", 1.0, status="abandoned")),
    )
    assert [[candidate.trajectory_id for candidate in g] for g in selection.groups] == [["a", "b"], ["c"]]
    assert _reasons(selection) == {"failed": Reason.FAILED, "lost": Reason.FAILED}


def test_trajectories_that_were_cut_off_are_left_out_on_demand() -> None:
    cut = member("x", 1.0, (completion(), completion(finish_reason="length")))
    (kept,) = _select(group(cut, member("a", 0.0))).groups
    assert [candidate.trajectory_id for candidate in kept] == ["x", "a"]
    options = OPTIONS.model_copy(update={"drop_truncated": True})
    assert _reasons(select([group(cut, member("a", 0.0))], current_version=0, options=options)) == {
        "x": Reason.TRUNCATED
    }


def test_the_state_of_a_call_is_what_the_environment_said_since_the_call_before() -> None:
    calls = (
        completion(prompt=[1, 2], tokens=[5]),
        completion(prompt=[1, 2, 5, 3, 4], tokens=[6]),
        completion(prompt=[9, 2, 5, 3, 4], tokens=[6]),  # it was rewritten: nothing says what is new
    )
    ((candidate,),) = _select(group(member("a", 1.0, calls))).groups
    assert [call.state for call in candidate.calls] == [(1, 2), (3, 4), (9, 2, 5, 3, 4)]


def test_a_reward_of_a_span_is_that_of_its_call() -> None:
    calls = (completion(span_id="s1"), completion(span_id="s2"), completion(span_id="s2"), completion())
    ((candidate,),) = _select(group(member("a", 1.0, calls, span_rewards={"s2": 0.25, "other": 9.0}))).groups
    assert [call.reward for call in candidate.calls] == [0.0, 0.25, 0.0, 0.0]
