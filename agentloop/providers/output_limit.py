"""The hard cap that a connection has on the output of each request.

It is not ``max_output_tokens``, which one request asks for: the cap belongs to whoever set up the
connection, and no request gets past it (R260). What asks for more is refused, never cut to it; what
asks for nothing is sent with the cap as its ceiling, since the server's own default may be higher.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..admission.strict_json import parse
from ..errors import InputError, LimitExceeded
from ..limits import check_count
from ..messages import ModelOptions, ModelRequest

__all__ = ["OutputLimit"]

_MEMBERS: Final = frozenset({"max_completion_tokens", "max_output_tokens", "max_tokens"})
"""What servers call a ceiling of the output; some read more than one."""


class OutputLimit:
    """Holds requests to a cap.

    Args:
        name: whose it is, for the text of an error. tokens: 1 and up; None is no cap.

    Raises:
        InputError: ``tokens`` outside its range.
    """

    __slots__ = ("_newest", "tokens")

    def __init__(self, name: str, tokens: int | None) -> None:
        if tokens is not None:
            check_count(f"{name}.output_token_limit", tokens, 1)
        self.tokens = tokens
        self._newest: tuple[ModelOptions, ModelOptions] | None = None  # requests of one agent share their options

    def fit(self, request: ModelRequest) -> ModelRequest:
        """The request as it would be sent; one that asks for more is left as it is."""
        if self.tokens is None or type(request) is not ModelRequest or request.options.max_output_tokens is not None:
            return request
        newest = self._newest
        if newest is None or newest[0] is not request.options:
            capped = msgspec.structs.replace(request.options, max_output_tokens=self.tokens)
            newest = self._newest = (request.options, capped)
        return msgspec.structs.replace(request, options=newest[1])

    def hold(self, request: ModelRequest) -> ModelRequest:
        """The request to send.

        Raises:
            LimitExceeded: it asks for more than the cap.
            InputError: its ``extra`` names a ceiling of its own, which would stand beside the cap.
        """
        if self.tokens is None or type(request) is not ModelRequest:
            return request
        asked, extra = request.options.max_output_tokens, request.options.extra
        if asked is not None and asked > self.tokens:
            raise LimitExceeded("output_token_limit", self.tokens, asked)
        if extra != "{}" and "max_" in extra:
            members = parse(extra)
            named = sorted(_MEMBERS & members.keys()) if type(members) is dict else []
            if named:
                raise InputError(
                    f"ModelOptions.extra: expected no ceiling beside output_token_limit, got {', '.join(named)}"
                )
        return self.fit(request)
