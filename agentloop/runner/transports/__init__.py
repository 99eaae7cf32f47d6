"""The transports of this package."""

__all__: list[str] = []
