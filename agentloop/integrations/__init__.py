"""What needs another package: each module wraps one, and is imported by those who want it."""

__all__: list[str] = []
