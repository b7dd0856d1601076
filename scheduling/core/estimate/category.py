"""What is a prompt about? Rules on the bare prompt.

The original's rule looks for a label that its own load generator wrote into the prompt; on real prompts that rule says
``short_qa`` to everything. These rules read what people write: how the request begins, which artefacts it carries, and
how long it is. They need no training and cost microseconds, for only the beginning and the end are looked at.
"""

from __future__ import annotations

import re
from enum import StrEnum

LOOKED_AT = 600  # characters of the beginning; requests say what they want there, or
END_LOOKED_AT = 200  # in their last sentence, after the material


class Category(StrEnum):
    """What a prompt is about (DriftSched II-C)."""

    SHORT_QA = "short_qa"
    SUMMARY = "summary"
    TECHNICAL = "technical"
    REPORT = "report"


BASE_TOKENS: dict[str, float] = {
    Category.SHORT_QA: 64.0,
    Category.SUMMARY: 256.0,
    Category.TECHNICAL: 384.0,
    Category.REPORT: 512.0,
}
"""``T_base``: output expected of a category before anything was observed."""

_SUMMARY = re.compile(
    r"\b(summar(y|i[sz]e[sd]?|i[sz]ing|ies)|tl;?dr|in brief|key (points|takeaways)|abstract of|condense|shorten|"
    r"paraphrase|rephrase|rewrite|reword|recap|main (idea|point)s?|translate|proofread|extract (all|the))\b"
)
_TECHNICAL = re.compile(
    r"```|\b(code|script|function|program|algorithm|python|java|javascript|typescript|rust|golang|sql|query|regex|html|"
    r"css|api|bash|shell|linux|docker|kubernetes|debug|bug|error|exception|traceback|compile[rs]?|class|implement|"
    r"refactor|unit tests?|database|server|json|yaml|xml|git|equation|theorem|prove|proof|integral|derivative|matrix|"
    r"calculate|compute)\b|[;{}]\s*\n|\b(def|import|select|const|var|public|#include)\s|c\+\+|c#"
)
_REPORT = re.compile(
    r"\b(write|draft|compose|create|generate|prepare|produce|develop|design)\b.{0,60}?\b(report|essay|article|blog|story|"
    r"stories|plan|proposal|letter|guide|tutorial|outline|chapter|paper|review|analysis|scene|dialogue|script for|poem|"
    r"novel|speech|lesson|curriculum|strategy|specification|documentation|table of|case study|overview)\b|"
    r"\b(in detail|detailed|comprehensive|in[- ]depth|step[- ]by[- ]step|thorough(ly)?|at least \d{3,} words|"
    r"long[- ]form)\b"
)
_QUESTION = re.compile(
    r"^\W*(what|who|whom|whose|when|where|which|is|are|was|were|do|does|did|can|could|has|have|how (many|much|old|far|"
    r"long|tall)|name|define|true or false|yes or no)\b"
)
SHORT_QUESTION = 25  # words
LONG_MATERIAL = 400  # words before which a closing instruction counts more than the material


def classify(text: str) -> Category:
    """The category of a bare prompt. Any text has one."""
    head = text[:LOOKED_AT].lower()
    end = text[-END_LOOKED_AT:].lower() if len(text) > LOOKED_AT else ""
    if _SUMMARY.search(head) or (end and _SUMMARY.search(end)):
        return Category.SUMMARY
    short = len(text) < SHORT_QUESTION * 8 and text.count(" ") < SHORT_QUESTION
    technical = _TECHNICAL.search(head) is not None or (bool(end) and _TECHNICAL.search(end) is not None)
    if short and not technical and _QUESTION.match(head):
        return Category.SHORT_QA
    if _REPORT.search(head) or (end and _REPORT.search(end)):
        return Category.TECHNICAL if technical else Category.REPORT
    if technical:
        return Category.TECHNICAL
    if text.count(" ") > LONG_MATERIAL:
        return Category.SUMMARY
    return Category.SHORT_QA
