"""Tickets for the order desk, drawn from a seed, and the small SQLite database of the orders they ask about.

Training and held-out tickets share no order number and no phrasing.
"""

import random
import sqlite3
from dataclasses import dataclass
from itertools import product
from pathlib import Path

FIRST = [
    "amber",
    "birch",
    "cedar",
    "coral",
    "ebony",
    "flint",
    "hazel",
    "ivory",
    "linen",
    "maple",
    "olive",
    "pearl",
    "quartz",
    "raven",
    "slate",
    "tulip",
]
SECOND = [
    "anchor",
    "basket",
    "candle",
    "drum",
    "falcon",
    "garden",
    "hammer",
    "island",
    "jacket",
    "kettle",
    "lantern",
    "meadow",
    "needle",
    "orchard",
    "pepper",
    "river",
]
STATES = ["packed", "shipped", "delayed", "delivered", "returned", "cancelled"]

TRAINING_PHRASES = (
    "Hi, where is my order {order}? I have been waiting for a week.",
    "Could you check on order {order} for me please?",
    "I bought a lamp from you. The order number is {order}. Any news?",
    "Order {order} has not come yet. What is going on?",
    "My name is Sam and I would like to know about {order}.",
    "What happened to {order}? I paid on Monday.",
    "Please tell me about the parcel with number {order}, thank you.",
    "You sent me a mail about {order}, but I can't read it.",
)
HELD_OUT_PHRASES = (
    "Good morning, I am asking about order {order} again.",
    "My sister gave me the number {order} and told me to ask you.",
    "Is there any update on {order}? It is a birthday present.",
    "Two weeks ago I ordered a chair, {order}, and I hear nothing.",
)


@dataclass(frozen=True)
class Ticket:
    """What a customer wrote, and what a right answer needs: the order it is about and that order's state."""

    text: str
    order: str
    state: str


def make_tickets(seed: int) -> tuple[list[Ticket], list[Ticket]]:
    """Training and held-out tickets, 192 and 64, in random order."""
    draw = random.Random(seed)
    orders = [f"{first}-{second}" for first, second in product(FIRST, SECOND)]
    draw.shuffle(orders)
    training = [_ticket(draw, order, TRAINING_PHRASES) for order in orders[:192]]
    held_out = [_ticket(draw, order, HELD_OUT_PHRASES) for order in orders[192:]]
    return training, held_out


def _ticket(draw: random.Random, order: str, phrases: tuple[str, ...]) -> Ticket:
    return Ticket(draw.choice(phrases).format(order=order), order, draw.choice(STATES))


def write_orders(path: Path, tickets: list[Ticket]) -> None:
    """Make the order database anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT NOT NULL)")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [(t.order, t.state) for t in tickets])
    connection.close()
