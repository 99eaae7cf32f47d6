"""Model calls for applications that want typed values and shared budgets."""

from .built import BuiltContext, NeedsSummary, Summary, SummaryOf
from .context import ContextPlan, TokenCount
from .transport import Collector, Fragment, Interaction, Stage, Transport

__all__ = [
    "BuiltContext",
    "Collector",
    "ContextPlan",
    "Fragment",
    "Interaction",
    "NeedsSummary",
    "Stage",
    "Summary",
    "SummaryOf",
    "TokenCount",
    "Transport",
]
