"""Named dialects, each the smallest set of allowances that its recordings need.

The tests hold them to that: every preset admits its recordings, and without any one of its allowances
one of its recordings, or one of the reported cases named beside it, is refused. A server that is not here speaks
``openai``; `lenient` is for looking at an unknown stream and for hosts that accept everything but a cut one.

What a server can be asked for (``json_schema``, ``schema_with_tools``, ``forced_call``) is from its documentation
and from reports.
Where only some of its models take a schema, or nothing is known, it is not asked for one: a forced call is.
Schemas are documented for OpenAI, Azure (2024-08), vLLM and llama.cpp (by grammar, 2024), Mistral (2025-01),
Cerebras, Perplexity, xAI, Ollama and Gemini (2025).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..errors import InputError
from .call_text import CallText
from .dialect import ALLOWANCES, Dialect

__all__ = ["LENIENT", "OPENAI", "PRESETS", "PRESET_NAMES", "dialect", "dialect_for_host", "narrowest_first"]

_SECOND_GENERATION: Final[dict[str, Any]] = {"max_tokens_field": "max_tokens"}  # what everybody but OpenAI calls it
_REASONING: Final = ("refusal", "reasoning_content")
_DETAILS: Final = ("refusal", "reasoning_details", "reasoning")
_NO_SCHEMA: Final[dict[str, Any]] = {"json_schema": False}
_ONLY_TEXT: Final[dict[str, Any]] = {"json_schema": False, "forced_call": False}

OPENAI: Final = Dialect(name="openai")

_VENDORS: Final = (
    OPENAI,
    Dialect(
        name="azure",
        identity_late=True,  # prompt filter results come first; recorded 2025-08 to 2025-11
        identity_empty_later=True,  # the asynchronous filter's chunk; vendor documentation 2025
        delta_absent=True,  # the same chunk
        finish_repeated=True,  # DeepSeek R1 on Azure; recorded 2025-11
    ),
    Dialect(
        name="github_copilot",
        identity_late=True,  # recorded 2025
        usage_absent=True,  # recorded 2025
        **_NO_SCHEMA,  # not documented
    ),
    Dialect(
        name="deepseek",
        usage_running=True,  # deepseek-chat, recorded 2025
        replay=_REASONING,
        **_NO_SCHEMA,  # refused with status 400; reports 2025-01 to 2026-07
        **_SECOND_GENERATION,
    ),
    Dialect(
        name="gemini",
        index_absent=True,  # reports 2024 to 2025
        index_shared=True,  # reports 2025
        call_id_absent=True,  # reports 2024 to 2025
        arguments_placeholder=True,  # reports 2025
        calls_after_finish=True,  # reports 2025
        usage_running=True,  # counts grow with each chunk; documented 2026
        usage_partial=True,  # the first of them lack completion_tokens; documented 2026
        replay=("refusal", "calls", "extra_content"),
        schema_with_tools=False,  # refused with status 400; reports 2024-07 to 2025-10
        **_SECOND_GENERATION,
    ),
    Dialect(
        name="groq",
        usage_running=True,  # on the finish chunk and in its own; recorded 2025 to 2026
        usage_in_x_groq=True,  # without include_usage; recorded 2025
        id_changes=True,  # compound models; recorded 2025
        replay=("refusal", "reasoning"),
        **_NO_SCHEMA,  # some models only, the others refuse it; reports 2025
    ),
    Dialect(
        name="mistral",
        content_parts=True,  # reasoning models; recorded 2026
        index_absent=True,  # recorded 2024-08
        done_unended=True,  # recorded 2024
        replay=("content",),
        assistant_content="empty",
        stream_options=False,  # usage comes unasked
        **_SECOND_GENERATION,
    ),
    Dialect(
        name="ollama",
        index_shared=True,  # reports 2025
        replay=("refusal", "reasoning"),
        forced_call=False,  # tool_choice is taken and dropped; reports 2025-01 to 2026-08
        **_SECOND_GENERATION,
    ),
    Dialect(
        name="openrouter",
        finish_repeated=True,  # recorded 2025-11 to 2026
        replay=_DETAILS,
        **_NO_SCHEMA,  # compatible models only; documented 2025
        **_SECOND_GENERATION,
    ),
    Dialect(
        name="vllm",
        usage_running=True,  # continuous usage; recorded 2024
        replay=_REASONING,
        schema_with_tools=False,  # the schema holds all that is written, so no call is; reports 2026-04 to 2026-07
        **_SECOND_GENERATION,
    ),
    Dialect(name="llama_cpp", replay=_REASONING, **_SECOND_GENERATION),  # recorded 2026-11
    Dialect(
        name="litellm",
        replay=("refusal", "reasoning_content", "thinking_blocks", "calls"),  # recorded 2025
        **_NO_SCHEMA,  # as the server behind it
        **_SECOND_GENERATION,
    ),
    Dialect(name="cerebras", done_absent=True, replay=("refusal", "reasoning"), **_SECOND_GENERATION),  # recorded 2025
    Dialect(
        name="perplexity",
        done_absent=True,  # recorded 2024 to 2026
        usage_running=True,  # recorded 2024 to 2026
        id_changes=True,  # recorded 2024 to 2026
        forced_call=False,  # it has no tools; documented 2025 to 2026
        **_SECOND_GENERATION,
    ),
    Dialect(
        name="minimax",
        done_absent=True,  # recorded 2026-06
        usage_absent=True,  # recorded 2026-06
        arguments_object=True,  # reports 2025
        replay=("refusal", "reasoning_details"),
        **_ONLY_TEXT,  # neither is documented; reports 2026
        **_SECOND_GENERATION,
    ),
    Dialect(name="writer", done_absent=True, **_NO_SCHEMA, **_SECOND_GENERATION),  # recorded 2025-08; schema unknown
    Dialect(
        name="huggingface",
        usage_running=True,  # the router's Groq route; recorded 2025
        **_NO_SCHEMA,  # as the server behind it
        **_SECOND_GENERATION,
    ),
    Dialect(
        name="moonshot",
        usage_in_choice=True,  # documented 2025-03
        replay=_REASONING,
        **_ONLY_TEXT,  # a forced call is refused while a model thinks; measured by others 2026-07; schema unknown
        **_SECOND_GENERATION,
    ),
    Dialect(
        name="zai",
        finish_repeated=True,  # recorded 2025-11
        replay=_REASONING,
        **_ONLY_TEXT,  # tool_choice must be auto; reports 2026-09; response_format is text or json_object; documented
        **_SECOND_GENERATION,
    ),
    Dialect(name="doubleword", finish_repeated=True, **_NO_SCHEMA, **_SECOND_GENERATION),  # recorded 2026
    Dialect(
        name="avian", id_changes=True, finish_repeated=True, replay=_REASONING, **_NO_SCHEMA, **_SECOND_GENERATION
    ),  # recorded 2026
    Dialect(name="xai", replay=_REASONING),  # recorded 2025-11
    Dialect(name="together", **_NO_SCHEMA, **_SECOND_GENERATION),  # recorded 2025; schema with some models
    Dialect(name="bedrock", **_NO_SCHEMA, **_SECOND_GENERATION),  # recorded 2025; schema with some models, 2026
    Dialect(
        name="anthropic",
        index_base=True,  # recorded 2026
        done_unended=True,  # recorded 2026
        usage_absent=True,  # recorded 2026
        **_NO_SCHEMA,  # response_format is ignored; documented 2025
        **_SECOND_GENERATION,
    ),
    Dialect(name="localai", call_repeated=True, **_NO_SCHEMA, **_SECOND_GENERATION),  # reports 2025; schema unknown
)


def _without_usage(preset: Dialect) -> Dialect:
    """The same server, for requests that ask for no usage."""
    return msgspec.structs.replace(preset, name=f"{preset.name}_no_usage", usage_absent=True)


LENIENT: Final = msgspec.structs.replace(
    Dialect(
        name="lenient",
        replay=(*_REASONING, "reasoning", "reasoning_details", "calls"),
        **_NO_SCHEMA,
        **_SECOND_GENERATION,
    ),
    **{name: True for name in ALLOWANCES if name != "finish_inferred"},
)
"""Every allowance but the inferred finish: what admits a stream that was cut before its finish is in no preset."""

PRESETS: Final[dict[str, Dialect]] = {
    preset.name: preset
    for preset in (
        *_VENDORS,
        *(_without_usage(preset) for preset in _VENDORS if not preset.usage_absent),
        LENIENT,
    )
}

PRESET_NAMES: Final = (
    f"{', '.join(preset.name for preset in (*_VENDORS, LENIENT))} "
    "(most of them also as NAME_no_usage, for requests that ask for no usage)"
)
"""The names in words, for messages and help."""

_HOSTS: Final = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "cognitiveservices.azure.com": "azure",
    "githubcopilot.com": "github_copilot",
    "api.deepseek.com": "deepseek",
    "generativelanguage.googleapis.com": "gemini",
    "aiplatform.googleapis.com": "gemini",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "ollama.com": "ollama",
    "openrouter.ai": "openrouter",
    "api.cerebras.ai": "cerebras",
    "api.perplexity.ai": "perplexity",
    "api.minimax.io": "minimax",
    "api.minimaxi.com": "minimax",
    "api.writer.com": "writer",
    "router.huggingface.co": "huggingface",
    "api.moonshot.ai": "moonshot",
    "api.moonshot.cn": "moonshot",
    "api.z.ai": "zai",
    "open.bigmodel.cn": "zai",
    "api.doubleword.ai": "doubleword",
    "api.avian.io": "avian",
    "api.x.ai": "xai",
    "api.together.xyz": "together",
    "api.together.ai": "together",
    "amazonaws.com": "bedrock",
    "api.anthropic.com": "anthropic",
}


def dialect(name: str, *, call_text: CallText | None = None, where: str = "dialect") -> Dialect:
    """The preset of that name.

        dialect("ollama", call_text=ToolCallParser())  # for a model that writes its calls in its text

    Args:
        call_text: see `Dialect`; None gives the preset as it is.

    Raises:
        InputError: there is no such preset; the message says ``where`` the name came from, and lists the names.
            Or ``call_text`` is none.
    """
    try:
        preset = PRESETS[name]
    except KeyError:
        raise InputError(f"{where}: expected one of {PRESET_NAMES}, got {name!r}") from None
    return preset if call_text is None else msgspec.structs.replace(preset, call_text=call_text)


def dialect_for_host(host: str) -> Dialect:
    """The preset for a host name, or for one of its parent domains; ``openai`` for any other."""
    labels = host.lower().rstrip(".").split(".")
    for at in range(len(labels) - 1):
        name = _HOSTS.get(".".join(labels[at:]))
        if name is not None:
            return PRESETS[name]
    return OPENAI


def narrowest_first() -> tuple[Dialect, ...]:
    """All presets by number of allowances, then in the order of `PRESETS`."""
    return tuple(sorted(PRESETS.values(), key=lambda preset: len(preset.allowances())))
