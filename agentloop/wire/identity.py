"""Which reply the chunks belong to: one id and one model, fixed by the first chunk (R115)."""

from __future__ import annotations

from .dialect import Dialect
from .fault import Fault

__all__ = ["Identity"]


class Identity:
    """The reply's ``id`` and ``model``.

    Attributes:
        id, model: as they stand; ``""`` while not told.
    """

    __slots__ = ("_dialect", "_first", "id", "model")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._first = True
        self.id = ""
        self.model = ""

    def check(self, id_: str, model: str) -> None:
        """Hold one chunk against the reply's identity; both arguments are ``""`` when absent.

        Raises:
            Fault: ``identity_changed``.
        """
        if self._first:
            self._first = False
            self.id, self.model = id_, model
            return
        if id_ != self.id:
            self.id = self._settle("id", self.id, id_, self._dialect.id_changes)
        if model != self.model:
            self.model = self._settle("model", self.model, model, self._dialect.model_changes)

    def _settle(self, field: str, known: str, came: str, free: bool) -> str:
        """The value that stands from here on: the first one told."""
        if not came:
            if free or self._dialect.identity_empty_later:
                return known
        elif not known:
            if free or self._dialect.identity_late:
                return came
        elif free:
            return known
        was = "an empty one" if not known else "another one"
        raise Fault(
            "identity_changed",
            f"the {field} of the first chunk on every chunk",
            f"no {field}" if not came else f"{'an' if field == 'id' else 'a'} {field} after {was}",
        )
