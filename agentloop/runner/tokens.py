"""A token budget: a model's window, who counts, and what is left for the input.

Tokens are counted by a counter that a host names, or not at all: characters and bytes are never made
into tokens here (R214). A window is what the host says about its model; there is no default, since
nothing here knows any provider's capacity (R233).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from ..errors import InputError
from ..limits import SAFE_INTEGER, check_count, number_or_type
from ..messages import ModelRequest

__all__ = ["TokenBudget", "TokenCounter"]


@runtime_checkable
class TokenCounter(Protocol):
    """Counts what a request comes to. Called before a request is sent, never while it is.

    Attributes:
        identity: says how it counts, as ``tiktoken:o200k_base``; not empty. Kept beside every count.
    """

    @property
    def identity(self) -> str: ...

    def count(self, request: ModelRequest, /) -> int:
        """Tokens of the whole request, 0 and up; answers at once and changes nothing."""
        ...


class TokenBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A window for input and output together.

        budget = TokenBudget(window=128_000, counter=TiktokenCounter("o200k_base"), margin=1_000)
        budget.input_limit(1_024)  # 125_976

    Attributes:
        window: tokens of input and output together, 1 and up.
        counter: see `TokenCounter`.
        margin: tokens that are left unused, since a count may be an estimate; 0 to below ``window``.

    Raises:
        InputError: a value outside its range, or a counter that is none, by name.
    """

    window: int
    counter: TokenCounter
    margin: int = 0

    def __post_init__(self) -> None:
        check_count("TokenBudget.window", self.window, 1)
        check_count("TokenBudget.margin", self.margin, 0, self.window - 1)
        if not hasattr(self.counter, "identity"):
            raise InputError(f"TokenBudget.counter: expected a TokenCounter, got {type(self.counter).__name__}")
        identity = self.counter.identity
        if type(identity) is not str or not identity:
            got = "an empty one" if identity == "" else type(identity).__name__
            raise InputError(f"TokenBudget.counter: expected an identity that is a non-empty string, got {got}")
        if not callable(getattr(self.counter, "count", None)):
            raise InputError(f"TokenBudget.counter: expected a method count, got {type(self.counter).__name__}")

    def input_limit(self, max_output_tokens: int) -> int:
        """What the input may come to, when so much is reserved for the output: 1 and up.

        Raises:
            InputError: the reservation is no integer of 1 or more, or it leaves nothing of the window.
        """
        check_count("max_output_tokens", max_output_tokens, 1)
        left = self.window - max_output_tokens - self.margin
        if left < 1:
            raise InputError(
                f"max_output_tokens: expected at most {self.window - self.margin - 1}, which leaves a token of "
                f"window {self.window} less margin {self.margin} for the input, got {max_output_tokens}"
            )
        return left

    def count(self, request: ModelRequest) -> int:
        """What the counter says of a request.

        Raises:
            InputError: it gave no integer from 0 to 2**53 - 1; names the counter.
            Exception: what the counter raised.
        """
        found = self.counter.count(request)
        if type(found) is not int or not 0 <= found <= SAFE_INTEGER:
            got = number_or_type(found) if type(found) is not bool else "bool"
            raise InputError(f"token counter {self.counter.identity!r}: expected an integer of 0 or more, got {got}")
        return found
