"""The rollouts that both trainers get: random token ids from a seed. Standard library only, as both sides import it."""

import random
from dataclasses import dataclass

_VOCABULARY = range(100, 49_000)  # below are the special tokens


@dataclass(frozen=True)
class Shape:
    """Groups of trajectories. Each turn is one call: its prompt is all that came before, tool results included."""

    groups: int
    members: int
    first_prompt: int
    """Tokens that all calls of a group begin with."""
    turns: int
    answer: int
    """Sampled tokens of a turn."""
    tool: int
    """Tokens between two turns: the trajectory's own, and not trained on."""

    @property
    def sampled(self) -> int:
        return self.groups * self.members * self.turns * self.answer


@dataclass(frozen=True)
class Trajectory:
    group: int
    member: int
    reward: float
    first_prompt: list[int]
    answers: list[list[int]]
    tools: list[list[int]]
    """One less than answers."""

    @property
    def identity(self) -> str:
        return f"{self.group}-{self.member}"

    @property
    def calls(self) -> list[tuple[list[int], list[int]]]:
        """Prompt and sampled tokens of each turn."""
        found, context = [], self.first_prompt
        for answer, tool in zip(self.answers, [*self.tools, []], strict=True):
            found.append((context, answer))
            context = [*context, *answer, *tool]
        return found


def trajectories(shape: Shape) -> list[Trajectory]:
    draw = random.Random(0)

    def tokens(count: int) -> list[int]:
        return draw.choices(_VOCABULARY, k=count)

    found = []
    for group in range(shape.groups):
        first_prompt = tokens(shape.first_prompt)
        for member in range(shape.members):
            answers = [tokens(shape.answer) for _ in range(shape.turns)]
            tools = [tokens(shape.tool) for _ in range(shape.turns - 1)]
            found.append(Trajectory(group, member, float(member % 2), first_prompt, answers, tools))
    return found
