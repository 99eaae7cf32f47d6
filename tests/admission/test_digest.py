"""Digests: domain separated, framed, blind to key order."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.admission import chain, digest, digest_bytes
from agentloop.errors import AdmissionError, InputError


def test_a_digest_is_sha_256_over_domain_line_feed_and_canonical_bytes() -> None:
    wanted = hashlib.sha256(b'agentloop/test/v1\n{"a":1,"b":[-0]}').hexdigest()
    assert digest("agentloop/test/v1", {"b": [-0.0], "a": 1}) == wanted
    assert digest_bytes("agentloop/test/v1", b'{"a":1,"b":[-0]}') == wanted


def test_changed_material_is_another_digest() -> None:
    """(R89)"""
    values: list[Any] = [0, -0.0, "0", None, [], {}, [0], 2**53, 2**53 + 1, "", False]
    digests = {digest("agentloop/test/v1", value) for value in values}
    assert len(digests) == len(values)
    assert digest("agentloop/test/v1", 1) != digest("agentloop/test/v2", 1)


@given(st.dictionaries(st.text("abcé", max_size=3), st.integers(), min_size=1))
def test_a_digest_ignores_the_order_of_keys(value: dict[str, int]) -> None:
    assert digest("agentloop/test/v1", dict(reversed(value.items()))) == digest("agentloop/test/v1", value)


def test_a_chain_depends_on_every_part_its_order_and_its_borders() -> None:
    start = chain("agentloop/test/v1", "", b"one")
    chains = {
        start,
        chain("agentloop/test/v1", start, b"one"),
        chain("agentloop/test/v1", "", b"one", b""),
        chain("agentloop/test/v1", "", b"o", b"ne"),
        chain("agentloop/test/v1", "", b"ne", b"o"),
        chain("agentloop/test/v1", ""),
        chain("agentloop/other/v1", "", b"one"),
    }
    assert len(chains) == 7
    assert all(len(item) == 64 for item in chains)


@pytest.mark.parametrize("domain", ["", "a\nb"])
def test_a_domain_is_one_line(domain: str) -> None:
    for call in (lambda: digest(domain, 1), lambda: digest_bytes(domain, b""), lambda: chain(domain, "")):
        with pytest.raises(InputError, match="digest domain"):
            call()


def test_a_value_that_is_not_plain_has_no_digest() -> None:
    """(R46)"""
    with pytest.raises(AdmissionError):
        digest("agentloop/test/v1", float("nan"))
