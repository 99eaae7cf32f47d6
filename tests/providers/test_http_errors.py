"""Error answers of real servers, read without being repeated."""

from __future__ import annotations

import json
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.providers.http_errors import (
    VENDOR_MESSAGE_CHARS,
    VendorError,
    body_kind,
    may_have_been_processed,
    parse_error_body,
    parse_retry_after,
    shorten,
    status_error,
)

COLLECTED = Path(__file__).resolve().parents[2].parent / "shared" / "http_errors" / "index_errors.jsonl"
ROWS = [json.loads(line) for line in COLLECTED.read_text("utf-8").splitlines()] if COLLECTED.exists() else []
NOW = 1_796_000_000.0


def parsed(body: Any) -> tuple[str | None, str | None, str | None]:
    found = parse_error_body(body if isinstance(body, bytes) else json.dumps(body).encode())
    return found.code, found.type, found.message


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ({"error": {"code": "c", "type": "t", "message": "m"}}, ("c", "t", "m")),
        ({"error": {"code": 429, "message": "m"}}, ("429", None, "m")),
        ({"error": {"code": None, "type": "t", "message": "m"}}, (None, "t", "m")),
        ({"error": {"type": "", "message": "m", "code": "400"}}, ("400", None, "m")),
        ({"error": "text"}, (None, None, "text")),
        ({"code": "word", "error": "text"}, ("word", None, "text")),
        ({"error": {"error": {"code": "inner", "message": "m"}}}, ("inner", None, "m")),
        ([{"error": {"code": 400, "message": "m", "status": "INVALID"}}], ("400", None, "m")),
        ({"detail": "Invalid API Key"}, (None, None, "Invalid API Key")),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, (None, None, "field required")),
        ({"object": "error", "message": "m", "type": "t", "code": "1500"}, ("1500", "t", "m")),
        ({"type": "error", "error": {"type": "t", "message": "m"}}, (None, "t", "m")),
        ({"error": {"message": "m", "code": True}}, (None, None, "m")),
        ({"error": {}}, (None, None, None)),
        ({"error": None, "message": "m"}, (None, None, "m")),
        ({}, (None, None, None)),
        ([], (None, None, None)),
        (b"", (None, None, None)),
        (b"{broken", (None, None, None)),
        (b"[" * 50_000, (None, None, None)),
        (b"upstream connect error\nreset reason: x", (None, None, "upstream connect error")),
        (b"<html><title>502 Bad&nbsp;Gateway</title><h1>x</h1>", (None, None, "502 Bad Gateway")),
        (b"<html><body><h1>503 <b>Down</b></h1>\nlong", (None, None, "503 Down")),
        (b"<html><body>upstream down</body></html>", (None, None, None)),
        (b"\xff\xfe", (None, None, "\ufffd\ufffd")),
    ],
)
def test_code_type_and_message_are_found_in_any_shape(
    body: Any, facts: tuple[str | None, str | None, str | None]
) -> None:
    assert parsed(body) == facts


def test_what_a_router_quotes_of_the_vendor_behind_it_is_said_too() -> None:
    raw = json.dumps({"error": {"message": "temperature is not supported"}})
    body = {"error": {"code": 400, "message": "Provider returned error", "metadata": {"raw": raw}}}
    error = status_error(400, {}, json.dumps(body).encode(), attempt_id="a", now=NOW)
    assert error.vendor_message == "Provider returned error / temperature is not supported"
    assert str(error).endswith("got code 400")


@pytest.mark.skipif(not ROWS, reason="the collection of error bodies is not there")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
def test_every_collected_error_says_what_its_body_says(row: dict[str, Any]) -> None:
    error = status_error(row["status"], row["headers"], row["body"].encode(), attempt_id="a", now=NOW)
    body = json.loads(row["body"])
    inner = body.get("error", body)
    code = inner.get("code") if isinstance(inner, dict) else body.get("code")
    assert error.status == row["status"]
    assert error.vendor_code == (None if code is None else str(code))
    assert error.vendor_message
    said = inner if isinstance(inner, str) else inner.get("message") or inner.get("detail")
    assert error.vendor_message.partition(" / ")[0][:40] in " ".join(said.split())
    assert error.vendor_message[:40] not in str(error)
    assert len(str(error)) < 200
    assert error.may_have_been_processed is (row["status"] >= 500)
    if "retry-after" in row["headers"]:
        assert error.retry_after == float(row["headers"]["retry-after"])


def test_a_message_is_one_short_printable_line() -> None:
    assert shorten("a\n b\x00\t\u202ec  ") == "a b c"
    assert len(shorten("x" * 10_000)) == VENDOR_MESSAGE_CHARS
    assert shorten("x" * 10_000).endswith("…")


@settings(max_examples=150)
@given(st.binary(max_size=200) | st.from_regex(rb"\{\"error\": ?[\[{\"0-9a-z:,}\] ]{0,40}", fullmatch=True))
def test_no_body_breaks_the_reader(body: bytes) -> None:
    found = parse_error_body(body)
    assert isinstance(found, VendorError)
    assert all(
        text is None or 0 < len(text) <= VENDOR_MESSAGE_CHARS for text in (found.code, found.type, found.message)
    )


def test_a_key_that_the_server_repeats_is_blanked_before_anything_is_cut() -> None:
    key = "sk-0123456789abcdef"
    message = "x" * (VENDOR_MESSAGE_CHARS - 12) + key
    body = json.dumps({"error": {"message": message, "code": key}}).replace("-", "\\u002d").encode()
    error = status_error(401, {"x-request-id": key}, body, attempt_id="a", now=NOW, secrets=(key,))
    for text in (str(error), repr(error), str(error.vendor_message), str(error.request_id)):
        assert key[:4] not in text


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": " 7 "}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after-ms": "0", "retry-after": "1"}, 1.0),
        ({"retry-after-ms": "0"}, 0.0),
        ({"retry-after-ms": "nan", "retry-after": "3"}, 3.0),
        ({"retry-after": formatdate(NOW + 90, usegmt=True)}, 90.0),
        ({"retry-after": formatdate(NOW - 90, usegmt=True)}, 0.0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Sun, 99 Nov 2026 99:99:99 GMT"}, None),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, now=NOW) == seconds


def test_retry_after_may_be_an_old_form_of_date() -> None:
    """RFC 9110 section 5.6.7: recipients accept the two obsolete forms."""
    for text in ("Sunday, 29-Nov-26 23:59:59 GMT", "Sun Nov 29 23:59:59 2026", "Sun, 29 Nov 2026 23:59:59 GMT"):
        assert parse_retry_after({"retry-after": text}, now=NOW - 4000) == 799.0


@given(st.text(max_size=40))
def test_no_header_text_breaks_the_reader(text: str) -> None:
    found = parse_retry_after({"retry-after": text, "retry-after-ms": text}, now=NOW)
    assert found is None or found >= 0


@pytest.mark.parametrize(
    ("status", "maybe"),
    [
        (201, True),
        (204, True),
        (307, False),
        (400, False),
        (401, False),
        (404, False),
        (408, True),
        (409, True),
        (413, False),
        (429, False),
        (499, True),
        (500, True),
        (502, True),
        (503, True),
        (504, True),
    ],
)
def test_whether_a_status_leaves_open_that_the_request_was_worked_on(status: int, maybe: bool) -> None:
    assert may_have_been_processed(status) is maybe


def test_the_message_says_what_was_expected_and_what_came() -> None:
    body = json.dumps({"error": {"code": "c", "type": "t", "message": "m"}}).encode()
    error = status_error(429, {"retry-after": "2", "x-request-id": "req_1"}, body, attempt_id="at-1", now=NOW)
    assert str(error) == "HTTP 429: expected 200 with an event stream, got type t, code c, request id req_1"
    assert error.vendor_message == "m"
    assert (error.attempt_id, error.request_id, error.retry_after) == ("at-1", "req_1", 2.0)
    assert str(status_error(500, {}, b"", attempt_id="", now=NOW)).endswith("got no code")


@pytest.mark.parametrize(
    "said",
    [
        {"error": {"message": "Bad: the patient is called Anna"}},
        {"error": {"message": "x", "metadata": {"raw": "the patient is called Anna"}}},
        {"error": "the patient is called Anna", "code": "the patient is called Anna"},
        {"error": {"type": "the patient is called Anna"}},
    ],
)
def test_the_message_never_repeats_the_servers_words(said: object) -> None:
    error = status_error(400, {"x-request-id": "of Anna"}, json.dumps(said).encode(), attempt_id="", now=NOW)
    assert "Anna" not in f"{error}{error!r}"
    assert "Anna" in f"{error.vendor_message}{error.vendor_type}"


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (b"", "an empty body"),
        (b' {"secret": 1', "a body that begins like JSON"),
        (b"<!doctype html>", "a body that begins like HTML"),
        (b"data: {}", "a body that begins like an event stream"),
        (b"secret", "a body of another kind"),
    ],
)
def test_the_kind_of_a_body_is_said_without_quoting_it(first: bytes, kind: str) -> None:
    assert body_kind("application/json", first) == f"'application/json' and {kind}"
    assert "secret" not in body_kind("", first)
