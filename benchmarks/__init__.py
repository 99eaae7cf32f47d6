"""Benchmarks on seeded data: `python -m benchmarks`."""
