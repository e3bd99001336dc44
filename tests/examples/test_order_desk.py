"""The order desk's tickets: what is trained on and what is measured on have nothing in common."""

import pytest

from examples.order_desk.tickets import HELD_OUT_PHRASES, TRAINING_PHRASES, make_tickets
from examples.order_desk.train import score


@pytest.mark.parametrize("seed", range(3))
def test_training_and_held_out_tickets_share_no_order_and_no_phrasing(seed: int) -> None:
    training, held_out = make_tickets(seed)
    assert len(held_out) >= 64
    assert {t.order for t in training}.isdisjoint(t.order for t in held_out)
    assert set(TRAINING_PHRASES).isdisjoint(HELD_OUT_PHRASES)
    assert {t.text.replace(t.order, "{order}") for t in training} <= set(TRAINING_PHRASES)
    assert {t.text.replace(t.order, "{order}") for t in held_out} <= set(HELD_OUT_PHRASES)


def test_a_seed_always_gives_the_same_tickets() -> None:
    assert make_tickets(1) == make_tickets(1) != make_tickets(2)


@pytest.mark.parametrize(
    ("order", "reply", "reward"),
    [
        ("{order}", "Your order {order} is {state}.", 1.0),
        ("{order}", "It is {state}.", 0.5),
        ("order {order}", "Your order {order} is {state}.", 0.5),
        ("maple", "Your order maple is no such order.", 0.0),
    ],
)
def test_almost_right_earns_nothing(order: str, reply: str, reward: float) -> None:
    ticket = make_tickets(0)[0][0]
    desk = {
        name: text.format(order=ticket.order, state=ticket.state) for name, text in (("order", order), ("reply", reply))
    }
    assert score(desk, ticket) == reward
