"""The budgeted serial tool loop: a table of phases, a pure step, a thin driver."""

from .drive import advance, close, drive
from .states import NEXT, Phase, Signal, follow
from .step import Action, Answer, Ask, Close, Recover, Skip, Suspend, Wait, cancelled_end, phase_of, step, verdict

__all__ = [
    "Action",
    "Answer",
    "Ask",
    "Close",
    "NEXT",
    "Phase",
    "Recover",
    "Signal",
    "Skip",
    "Suspend",
    "Wait",
    "advance",
    "cancelled_end",
    "close",
    "drive",
    "follow",
    "phase_of",
    "step",
    "verdict",
]
