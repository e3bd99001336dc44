import torch

from art_sdk.store.batch import ClaimedGroup
from art_sdk.training.batch import padded_batches, token_logprobs
from art_sdk.training.model import load_policy
from art_sdk.training.options import LoraOptions, TrainingOptions
from art_sdk.training.tokens import Call, select

CPU = torch.device("cpu")


def _call(prompt: int, tokens: int, trajectory_id: str = "t") -> Call:
    return Call(trajectory_id, (0,) * prompt, (0,) * tokens, (-1.0,) * tokens, 1.0, 0)


def test_rows_of_a_micro_batch_stay_within_the_budget_padding_included() -> None:
    calls = [_call(prompt, 2) for prompt in (30, 3, 9, 9, 4, 20, 10)]
    shapes = [tuple(batch.input_ids_BL.shape) for batch in padded_batches(calls, 24, CPU)]
    assert shapes == [(1, 31), (1, 21), (2, 11), (2, 10), (1, 4)]


def test_masks_come_from_lengths_though_every_token_looks_like_padding() -> None:
    (batch,) = padded_batches([_call(4, 3), _call(2, 2)], 100, CPU)
    assert batch.attention_mask.tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert batch.calls_T.tolist() == [0, 0, 0, 1, 1]
    assert batch.positions_T.tolist() == [3, 4, 5, 7, 8]


def test_logprobs_of_padded_rows_equal_those_of_the_whole_model_call_by_call(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup]
) -> None:
    model = load_policy(base_model, lora)
    selection = select(groups, current_version=0, options=TrainingOptions())
    calls = [call for group in selection.groups for candidate in group for call in candidate.calls]
    assert {call.temperature for call in calls} == {0.7, 1.0}
    for batch in padded_batches(calls, 40, CPU):
        logprobs = token_logprobs(model, batch).detach()
        for row, call in enumerate(batch.calls):
            logits = model(torch.tensor([call.prompt_ids + call.token_ids])).logits[0].detach()
            predicting = logits[len(call.prompt_ids) - 1 : -1] / call.temperature
            expected = predicting.log_softmax(-1).gather(-1, torch.tensor(call.token_ids)[:, None]).squeeze(-1)
            torch.testing.assert_close(logprobs[batch.calls_T == row], expected, rtol=1e-5, atol=1e-5)
