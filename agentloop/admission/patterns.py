"""Regular expressions that are compiled when they are first used.

Compiling takes longer than all else that importing a module does, and most programs use few of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

__all__ = ["pattern"]


def pattern(source: str, flags: re.RegexFlag = re.NOFLAG) -> Callable[[], re.Pattern[str]]:
    """What returns the compiled pattern, always the same one."""
    return functools.cache(lambda: re.compile(source, flags))
