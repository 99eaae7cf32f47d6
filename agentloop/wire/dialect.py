"""What a vendor's stream may do beside the strict rules: data, never a branch on a vendor's name.

The strict rules are OpenAI's own protocol as its servers speak it. Every deviation that a recording
or a report shows is one named allowance, off unless a dialect turns it on. An allowance says what is
taken and why nothing is lost by taking it; the evidence names vendors and the kind of record.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from .call_text import CallText, require_call_text

__all__ = ["ALLOWANCES", "Dialect"]


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The allowances for one kind of server, and how requests to it are written.

    Attributes:
        name: shown in refusals, events and traces.
        assistant_content: what ``content`` is for an assistant message that only holds calls.
        replay: keys of `Native.data` that later requests carry back.
        max_tokens_field: the member that carries ``max_output_tokens``.
        stream_options: whether usage is asked for with ``stream_options.include_usage``.
        json_schema: whether every model of the server takes ``response_format`` of type ``json_schema``.
        schema_with_tools: whether the models may still call tools in a request that asks for one.
        forced_call: whether ``tool_choice`` makes its models call a tool.
        call_text: how its models write calls in their text, for models without calls of their own; None for
            native calls. A request then has no ``tools``: they are told in the instructions, the calls so far
            stand in assistant text, and results in user messages. A native call in a reply is refused.
        (the others): one allowance each; `ALLOWANCES` has the reason and the evidence.
    """

    name: str
    assistant_content: Literal["null", "empty"] = "null"
    replay: tuple[str, ...] = ("refusal",)
    max_tokens_field: str = "max_completion_tokens"
    stream_options: bool = True
    json_schema: bool = True
    schema_with_tools: bool = True
    forced_call: bool = True
    call_text: CallText | None = None

    identity_late: bool = False
    identity_empty_later: bool = False
    id_changes: bool = False
    model_changes: bool = False
    delta_absent: bool = False
    content_parts: bool = False
    index_absent: bool = False
    index_base: bool = False
    index_shared: bool = False
    call_id_absent: bool = False
    call_id_duplicated: bool = False
    call_repeated: bool = False
    name_pieces: bool = False
    arguments_object: bool = False
    arguments_placeholder: bool = False
    surrogates_split: bool = False
    finish_empty: bool = False
    finish_repeated: bool = False
    finish_first: bool = False
    finish_inferred: bool = False
    delta_after_finish: bool = False
    calls_after_finish: bool = False
    done_unended: bool = False
    done_absent: bool = False
    usage_absent: bool = False
    usage_running: bool = False
    usage_partial: bool = False
    usage_in_x_groq: bool = False
    usage_in_choice: bool = False
    choices_absent: bool = False

    def __post_init__(self) -> None:
        if self.call_text is not None:
            require_call_text(self.call_text, where="Dialect.call_text")

    @property
    def forces_calls(self) -> bool:
        """Whether a request can make a model call a tool: what is said in words cannot."""
        return self.forced_call and self.call_text is None

    @property
    def calls_beside_schema(self) -> bool:
        """Whether a model that is held to a schema may still call tools: calls in its text would be held to it too."""
        return self.schema_with_tools and self.call_text is None

    def allowances(self) -> tuple[str, ...]:
        """The names of the allowances that are on, in the order of `ALLOWANCES`."""
        return tuple(name for name in ALLOWANCES if getattr(self, name))


ALLOWANCES: Final[dict[str, str]] = {
    "identity_late": (
        "id or model may be empty or absent at first and settle once: nothing of the reply precedes them"
        " (Azure puts prompt filter results first, Writer names the model with the usage; recorded 2025-08 to 2025-11)"
    ),
    "identity_empty_later": (
        "a later chunk may have an empty or absent id or model: it adds no second identity"
        " (Azure's asynchronous content filter; vendor documentation and reports, 2025)"
    ),
    "id_changes": (
        "the id may change: some relays and tools mint one a chunk, or replace the first"
        " (Groq compound, Avian, Perplexity; recorded 2025-11 to 2026-06)"
    ),
    "model_changes": (
        "the model may change: routers name an alias first (reported for routers with fallback models, 2025);"
        " two models' text in one reply is then possible, so only a host that wants a router turns it on"
    ),
    "delta_absent": "a choice may have no delta, which is an empty one (Azure's late filter chunk; reports, 2025)",
    "content_parts": (
        "content may be an array of text, thinking and reference parts; thinking is reasoning, never text"
        " (Mistral reasoning models; recorded 2026)"
    ),
    "index_absent": (
        "a call may have no index: a new id opens a call, anything else goes to the newest"
        " (Mistral, recorded 2024-08; Gemini's compatible endpoint, reports 2024 to 2025)"
    ),
    "index_base": (
        "call indices may count from 1 or -1: the first one seen is the base (Anthropic behind a relay; recorded 2026)"
    ),
    "index_shared": (
        "several calls may share one index: another id opens another call"
        " (Ollama, reports 2025; Gemini behind OpenRouter, recorded 2025)"
    ),
    "call_id_absent": (
        "a call may have no id: one is minted from its position (Ollama and llama.cpp builds, reports 2024 to 2025)"
    ),
    "call_id_duplicated": (
        "two calls may have one id: the later gets its position appended (reports for several servers, 2025)"
    ),
    "call_repeated": (
        "one call may come at two indices, equal in id, name and arguments: it counts once (LocalAI, reports 2025)"
    ),
    "name_pieces": (
        "a call's name may come in pieces before its arguments begin (reports for several servers, 2024 to 2025)"
    ),
    "arguments_object": (
        "arguments may be sent as one whole object instead of text: their canonical text is kept"
        " (MiniMax, reports 2025)"
    ),
    "arguments_placeholder": (
        "the arguments {} may stand before the real ones, which replace them"
        " (Gemini's compatible endpoint, reports 2025)"
    ),
    "surrogates_split": (
        "a surrogate pair may be split over two deltas: the halves are joined, and a preview waits for the second"
        " (byte-level tokenizers behind several servers; reports, 2025)"
    ),
    "finish_empty": 'finish_reason "" before the end means null (several relays; reports, 2024-2025)',
    "finish_repeated": (
        "an equal finish_reason may come again, with nothing new in the delta"
        " (OpenRouter, Avian, Z.ai, Doubleword, Azure DeepSeek; recorded 2025-11 to 2026)"
    ),
    "finish_first": "of two finish words the first counts (relays that add their own stop; reports, 2025)",
    "finish_inferred": (
        "[DONE] may stand for a missing finish, when every call's arguments are JSON (NIM hosts, reports 2025);"
        " in no preset: a reply cut by its server would pass"
    ),
    "delta_after_finish": "text may come after the finish, when [DONE] still ends the stream (reports, 2025)",
    "calls_after_finish": (
        "calls may come after the finish, when [DONE] still ends the stream (Gemini routes, recorded 2025)"
    ),
    "done_unended": "a last [DONE] may lack the blank line that ends it (Mistral, recorded as raw bytes 2024)",
    "done_absent": (
        "the body may end after the finish without [DONE]"
        " (Cerebras, MiniMax, Perplexity, Writer; recorded 2025 to 2026)"
    ),
    "usage_absent": (
        "usage may be missing: the request asked for none, or the server has none (many; recorded 2024 to 2026)"
    ),
    "usage_running": (
        "usage may come on any chunk and more than once, each time the total so far: the last one counts,"
        " nothing is added"
        " (Perplexity, DeepSeek, vLLM's continuous usage; recorded 2024 to 2026)"
    ),
    "usage_partial": (
        "one of the three counts may be missing where the other two give it (Gemini behind Envoy; documented 2026)"
    ),
    "usage_in_x_groq": "usage may be under x_groq (Groq without include_usage; recorded 2025)",
    "usage_in_choice": "usage may be in the choice (Moonshot; vendor documentation, 2025-03)",
    "choices_absent": "a chunk with usage may have no choices (gateways; reports, 2025)",
}
