"""Model calls for applications that want typed values and shared budgets."""

from .tokens import TokenBudget, TokenCounter
from .transport import Collector, Fragment, Interaction, Stage, Transport

__all__ = ["Collector", "Fragment", "Interaction", "Stage", "TokenBudget", "TokenCounter", "Transport"]
