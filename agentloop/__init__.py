"""agentloop: an asyncio-native agent runtime with a streaming-first core.

Bytes of a Chat Completions stream are decoded and checked to the end, become one immutable
`ModelReply`, are stored as a fact, and only then drive the next step of a budgeted tool loop.
What a person sees meanwhile is a preview, never the truth.

The layers. A module imports modules of lower numbers, or siblings on its own line without a
cycle. Layers 0 to 5 import neither asyncio, anyio, aiohttp nor a database driver. A test reads
this map and holds the imports to it.

    errors.py         0  every error a caller can catch: one tree, drawn at the top
    error_info.py     1  any error as facts for programs, and which of several is raised
    limits.py         1  every default and range in one place
    admission/        2  strict JSON, canonical JSON, digests
    messages/         3  what is said, frozen; require_* checks what a host hands in
    events/           4  what happened, frozen: envelope, output, process, their order; a journal of calls
    wire/             4  sans-IO Chat Completions: framing, chunks, assembler, dialects, encoding
    exchange/         5  the conversation as facts, pure: origins, entries, slots, book
    tools/            5  typed function to Tool, schema, policy, tool sets
    sinks/            6  where events go: queue, fan-out, JSON lines, observers
    persistence/      6  backends, and the store: append, then install, then publish
    providers/        6  the provider contract, Chat Completions over HTTP, replay, recording
    effects/          7  ledger, one send, one tool execution
    runner/           8  model calls without a loop: transports, context, budgets, children
    loop/             9  states, the pure step, the driver
    agent.py          9  Agent, an immutable definition
    results.py        9  what a run came to
    eager.py         10  a task that takes its first step at once
    basis.py         10  whether a run is taken up with what it was started with
    windows.py       10  one run as its host sees it
    unsettled.py     10  what a host can ask about a run's effects: what is unsettled, what became of a send
    life.py          10  whether a runtime takes runs, in which event loop, and what has begun by it
    runs.py          11  the runs of a runtime: launched, taken up, driven, let go, ended
    integrations/    11  what needs another package, a module for each
    conversations.py 12  conversations as a host sees them
    unfinished.py    12  what a process left unfinished, as a host sees it
    runtime.py       13  what a host calls: owns provider, store and runs; closes them in the right order
    testing/         14  scripted provider, replay server, fake clock, recording sink, fixtures
    cli/             15  the command line (with __main__.py)
"""

from .agent import Agent
from .effects import Ledger, ResendPolicy
from .error_info import ErrorInfo, error_info
from .errors import (
    AdmissionError,
    AgentLoopError,
    BudgetError,
    ConflictError,
    ConnectionFailed,
    ConnectionLost,
    HistoryError,
    HTTPStatusError,
    InputError,
    LimitExceeded,
    LostError,
    ModelPending,
    NotOwnerError,
    OutcomeError,
    PersistenceError,
    ProviderError,
    RestoreError,
    RunCancelled,
    RunPaused,
    SendTimeout,
    StaleHeadError,
    StreamRefused,
    ToolCrashed,
    ToolDefinitionError,
    ToolFailed,
    ToolResultError,
    UnsettledError,
)
from .events import (
    ENVELOPE_FIELDS,
    EVENT_TYPES,
    EVENT_VERSION,
    ContextRecord,
    Event,
    Journal,
    JournalSnapshot,
    ModelCallRecord,
    ModelCallTrace,
    ModelEnd,
    ModelParsed,
    ModelStart,
    OutputEvent,
    ProcessEvent,
    ReasoningPreview,
    RejectedCall,
    RequestRejected,
    ResendScheduled,
    RunEnded,
    RunEvent,
    RunStarted,
    TextPreview,
    ToolCallRecord,
    ToolCallTrace,
    ToolEnded,
    ToolProgress,
    ToolSkipped,
    ToolStarted,
    decode_event,
    encode_event,
    event_id,
    event_sequence,
)
from .exchange import (
    BookLimits,
    Checkpoint,
    CompletedPoint,
    ExchangeRef,
    ModelPoint,
    PreparedPoint,
    ToolClaim,
    ToolsPoint,
)
from .limits import LoopLimits, Timeouts
from .messages import (
    FunctionSpec,
    ImagePart,
    JsonText,
    Message,
    ModelExchange,
    ModelOptions,
    ModelReply,
    ModelRequest,
    Native,
    ResponseFormat,
    SystemMessage,
    Termination,
    Text,
    TextContent,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolFeedback,
    ToolResult,
    Usage,
    UserMessage,
    decode_model_exchange,
    decode_model_reply,
    decode_model_request,
    decode_tool_feedback,
    decode_tool_result,
    messages_chars,
    reply_text,
    require_model_exchange,
    require_model_reply,
    require_model_request,
    require_tool_feedback,
    require_tool_result,
    text_chars,
)
from .persistence import ConversationRow, RunRow
from .providers import ChatCompletions, Provider, Recorder, ReplayProvider
from .results import RunResult
from .runtime import Runtime
from .sinks import FanOut, JsonLinesSink, Observer, QueueSink, Sink
from .tools import (
    NOT_DONE,
    ArgumentsRefused,
    NotDone,
    SelectionContext,
    Tool,
    ToolContext,
    ToolInvocation,
    ToolJournal,
    ToolPipeline,
    ToolPolicy,
    ToolSet,
    selection,
    tool,
)
from .unsettled import SendStatus, Unsettled
from .windows import Run, RunInput, RunOptions
from .wire.dialect import Dialect

__all__ = [
    "AdmissionError",
    "Agent",
    "AgentLoopError",
    "ArgumentsRefused",
    "BookLimits",
    "BudgetError",
    "ChatCompletions",
    "Checkpoint",
    "CompletedPoint",
    "ConflictError",
    "ConnectionFailed",
    "ConnectionLost",
    "ContextRecord",
    "ConversationRow",
    "Dialect",
    "ENVELOPE_FIELDS",
    "EVENT_TYPES",
    "EVENT_VERSION",
    "ErrorInfo",
    "Event",
    "ExchangeRef",
    "FanOut",
    "FunctionSpec",
    "HTTPStatusError",
    "HistoryError",
    "ImagePart",
    "InputError",
    "Journal",
    "JournalSnapshot",
    "JsonLinesSink",
    "JsonText",
    "Ledger",
    "LimitExceeded",
    "LoopLimits",
    "LostError",
    "Message",
    "ModelCallRecord",
    "ModelCallTrace",
    "ModelEnd",
    "ModelExchange",
    "ModelOptions",
    "ModelParsed",
    "ModelPending",
    "ModelPoint",
    "ModelReply",
    "ModelRequest",
    "ModelStart",
    "NOT_DONE",
    "Native",
    "NotDone",
    "NotOwnerError",
    "Observer",
    "OutcomeError",
    "OutputEvent",
    "PersistenceError",
    "PreparedPoint",
    "ProcessEvent",
    "Provider",
    "ProviderError",
    "QueueSink",
    "ReasoningPreview",
    "Recorder",
    "RejectedCall",
    "ReplayProvider",
    "RequestRejected",
    "ResendPolicy",
    "ResendScheduled",
    "ResponseFormat",
    "RestoreError",
    "Run",
    "RunCancelled",
    "RunEnded",
    "RunEvent",
    "RunInput",
    "RunOptions",
    "RunPaused",
    "RunResult",
    "RunRow",
    "RunStarted",
    "Runtime",
    "SelectionContext",
    "SendStatus",
    "SendTimeout",
    "Sink",
    "StaleHeadError",
    "StreamRefused",
    "SystemMessage",
    "Termination",
    "Text",
    "TextContent",
    "TextPart",
    "TextPreview",
    "Timeouts",
    "Tool",
    "ToolCall",
    "ToolCallRecord",
    "ToolCallTrace",
    "ToolChoice",
    "ToolClaim",
    "ToolContext",
    "ToolCrashed",
    "ToolDefinitionError",
    "ToolEnded",
    "ToolFailed",
    "ToolFeedback",
    "ToolInvocation",
    "ToolJournal",
    "ToolPipeline",
    "ToolPolicy",
    "ToolProgress",
    "ToolResult",
    "ToolResultError",
    "ToolSet",
    "ToolSkipped",
    "ToolStarted",
    "ToolsPoint",
    "Unsettled",
    "UnsettledError",
    "Usage",
    "UserMessage",
    "decode_event",
    "decode_model_exchange",
    "decode_model_reply",
    "decode_model_request",
    "decode_tool_feedback",
    "decode_tool_result",
    "encode_event",
    "error_info",
    "event_id",
    "event_sequence",
    "messages_chars",
    "reply_text",
    "require_model_exchange",
    "require_model_reply",
    "require_model_request",
    "require_tool_feedback",
    "require_tool_result",
    "text_chars",
    "selection",
    "tool",
]
