"""Defines the operator that runs an encoder of images or texts in a plan: ``col("title").encode(encoder)``.

It is an operator of a user (user_operators.py) whose result is a vector of fixed width: a text, or the bytes of an image, becomes
as many columns of the dense matrix. Python runs it, so it is placed on the CPU, even in a plan for a GPU. Like every operator of
a joined view, it runs once for each row of the view. Equal values are encoded once. A saved plan contains the facts of the
encoder instead of an import path.
"""

from __future__ import annotations

from dataclasses import dataclass

from ctrbox.plan.language.user_operators import UserOperator


@dataclass(frozen=True)
class EncodeOperator(UserOperator):
    """An encoder as an operator. ``function`` maps an Arrow array of texts or images to an array of lists of ``width``
    numbers.
    """

    width: int = 0
    facts: tuple[tuple[str, str], ...] = ()  # of the encoder, without those that only decide about rounding

    @property
    def name(self) -> str:
        return f"encode({dict(self.facts)['name']!r})"

    @property
    def path(self) -> str:
        return self.name

    @property
    def skips_nulls(self) -> bool:
        return True
