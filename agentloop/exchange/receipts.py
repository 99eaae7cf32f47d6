"""Proof of reception: who received a reply or a tool's answer, and on whose behalf.

The book takes a reply or a result only with a receipt of the mint it was made with, so a host
cannot write an exchange past the effects (R80). What never ran needs no receipt (R81).
"""

from __future__ import annotations

__all__ = ["Receipt", "ReceiptMint"]


class Receipt:
    """One reception; made by a `ReceiptMint` only.

    Attributes:
        invocation_id: the attempt or execution that received it.
        parent_id: the run it belongs to.
    """

    __slots__ = ("_seal", "invocation_id", "parent_id")

    def __init__(self, seal: object, invocation_id: str, parent_id: str) -> None:
        self._seal, self.invocation_id, self.parent_id = seal, invocation_id, parent_id


class ReceiptMint:
    """Makes receipts and recognises its own."""

    def __init__(self) -> None:
        self._seal = object()

    def receipt(self, *, invocation_id: str, parent_id: str) -> Receipt:
        """Certify that ``invocation_id`` received something for ``parent_id``."""
        return Receipt(self._seal, invocation_id, parent_id)

    def made(self, receipt: object) -> bool:
        """Whether ``receipt`` is one of this mint."""
        return type(receipt) is Receipt and receipt._seal is self._seal
