"""How many input tokens does a text have? Counted from words and bytes, corrected by what engines reported.

No tokenizer: a count costs microseconds at any length. English prose has about one token per word plus a third, source
code and other scripts are bounded by bytes; which of the two a model's tokenizer follows is learned per tenant by
:class:`TokenCalibration` from the prompt tokens of ended requests, in the manner of DriftSched's bias (eq. for B): an
exponential average of the clipped ratio actual / estimated.
"""

from __future__ import annotations

BYTES_PER_TOKEN = 4.0
GAMMA = 0.95  # one observation moves the factor by 5 % of its error
LEAST_RATIO, MOST_RATIO = 0.25, 4.0


def raw_tokens(text: str) -> float:
    """Tokens of ``text`` before calibration: its words or a quarter of its bytes, whichever is more."""
    n = len(text)
    if not n:
        return 0.0
    # one letter beyond ASCII makes no other text of the ASCII around it
    size = n if text.isascii() else len(text.encode(errors="surrogatepass"))
    # spaces in pairs indent and fill up: tokenizers take a run of them for one token, or for a part of the next
    words = text.count(" ") - 2 * text.count("  ") + text.count("\n") + 1
    return max(float(words), size / BYTES_PER_TOKEN)


class TokenCalibration:
    """The ratio actual / raw of one tenant in one pool, learned while running. Starts at 1."""

    __slots__ = ("factor", "observed")

    def __init__(self) -> None:
        self.factor = 1.0
        self.observed = 0

    def estimate(self, raw: float) -> int:
        """Input tokens expected for a raw count; at least 1."""
        return max(1, round(raw * self.factor))

    def observe(self, raw: float, actual: int) -> None:
        """An engine said that a prompt of ``raw`` had ``actual`` tokens. Early observations weigh more."""
        if raw <= 0 or actual <= 0:
            return
        ratio = min(MOST_RATIO, max(LEAST_RATIO, actual / raw))
        self.observed += 1
        keep = min(GAMMA, 1.0 - 1.0 / (self.observed + 1))
        self.factor = keep * self.factor + (1.0 - keep) * ratio
