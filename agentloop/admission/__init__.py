"""What public boundaries admit: strict JSON, plain values, their canonical form and digests."""

from .canonical import canonical, canonical_text
from .digest import chain, digest, digest_bytes
from .json_fault import INTEGER_DIGITS
from .patterns import pattern
from .plain import is_unicode, require_plain
from .strict_json import parse
from .typed import to_type

__all__ = [
    "INTEGER_DIGITS",
    "canonical",
    "canonical_text",
    "chain",
    "digest",
    "digest_bytes",
    "is_unicode",
    "parse",
    "pattern",
    "require_plain",
    "to_type",
]
