"""Model calls for applications that want typed values and shared budgets."""

from .asking import Asking, asked_by_route, asked_plainly, has_begun
from .built import BuiltContext, NeedsSummary, Summary, SummaryOf
from .calls import ModelResult
from .children import ChildLimits, run_children
from .context import ContextPlan, TokenCount
from .host import Host
from .input import ModelInput
from .model_runner import ModelRunner
from .options import Execution, RunnerOptions
from .prepared import Measurement, Prepared
from .summaries import Purpose, build_context
from .tokens import TokenBudget, TokenCounter
from .transport import Collector, Fragment, Interaction, Stage, Transport
from .transports import (
    PLAIN_TEXT,
    JsonCall,
    NativeCall,
    PlainText,
    Route,
    Session,
    SessionCall,
    SessionReply,
    Structured,
)

__all__ = [
    "Asking",
    "BuiltContext",
    "ChildLimits",
    "Collector",
    "ContextPlan",
    "Execution",
    "Fragment",
    "Host",
    "Interaction",
    "JsonCall",
    "Measurement",
    "ModelInput",
    "ModelResult",
    "ModelRunner",
    "NativeCall",
    "NeedsSummary",
    "PLAIN_TEXT",
    "PlainText",
    "Prepared",
    "Purpose",
    "Route",
    "RunnerOptions",
    "Session",
    "SessionCall",
    "SessionReply",
    "Stage",
    "Structured",
    "Summary",
    "SummaryOf",
    "TokenBudget",
    "TokenCount",
    "TokenCounter",
    "Transport",
    "asked_by_route",
    "asked_plainly",
    "build_context",
    "has_begun",
    "run_children",
]
