"""A mint knows its own receipts."""

from __future__ import annotations

import copy

import pytest

from agentloop.exchange import Receipt, ReceiptMint


def test_a_mint_recognises_only_what_it_made() -> None:
    """(R80)"""
    mint = ReceiptMint()
    receipt = mint.receipt(invocation_id="a1", parent_id="r1")
    assert mint.made(receipt)
    assert (receipt.invocation_id, receipt.parent_id) == ("a1", "r1")
    assert not ReceiptMint().made(receipt)
    assert not mint.made(ReceiptMint().receipt(invocation_id="a1", parent_id="r1"))
    assert not mint.made(Receipt(object(), "a1", "r1"))
    assert not mint.made(None)


def test_a_subclass_or_a_look_alike_is_no_receipt() -> None:
    """(R80)"""
    mint = ReceiptMint()
    receipt = mint.receipt(invocation_id="a1", parent_id="r1")

    class Mine(Receipt):
        pass

    assert not mint.made(Mine(receipt._seal, "a1", "r1"))

    class Liar:
        __class__ = Receipt  # type: ignore[assignment]
        _seal, invocation_id, parent_id = receipt._seal, "a1", "r1"

    assert isinstance(Liar(), Receipt)
    assert not mint.made(Liar())


def test_a_deep_copy_does_not_carry_the_seal() -> None:
    """(R80)"""
    mint = ReceiptMint()
    assert not mint.made(copy.deepcopy(mint.receipt(invocation_id="a1", parent_id="r1")))


def test_a_receipt_has_no_further_room() -> None:
    receipt = ReceiptMint().receipt(invocation_id="a1", parent_id="r1")
    with pytest.raises(AttributeError):
        receipt.note = "x"  # type: ignore[attr-defined]
