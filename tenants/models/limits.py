"""What a key, and each of its users, may take."""

from __future__ import annotations

from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from scheduling.core.types import RateLimits

LARGEST_LIMIT = 1_000_000_000
MOST_A_DAY = 1_000_000_000_000


def _limit(help_text: str) -> Any:
    return models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(LARGEST_LIMIT)], help_text=help_text
    )


class UserLimits(models.Model):
    """What each user may: who the requests' ``safety_identifier`` or ``user`` name."""

    user_requests_per_minute = _limit("Requests a minute of each user, in each pool. Empty: no limit.")
    user_tokens_per_minute = _limit(
        "Tokens a minute of each user, prompt and answer together, in each pool. Empty: no limit."
    )
    user_concurrency = _limit("Requests of each user that wait or run at once, in each pool. Empty: no limit.")

    class Meta:
        abstract = True


class KeyLimits(UserLimits):
    """What a key may, and each of its users."""

    requests_per_minute = _limit("Requests a minute in each pool that it opens. Empty: no limit.")
    tokens_per_minute = _limit(
        "Tokens a minute, prompt and answer together, in each pool that it opens. Empty: no limit."
    )
    concurrency = _limit("Requests that wait or run at once in each pool that it opens. Empty: no limit.")

    tokens_per_day = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_A_DAY)],
        help_text="Tokens a day (UTC), prompt and answer together, in all pools together. Empty: no limit.",
    )

    class Meta:
        abstract = True


OF_USER = ("user_requests_per_minute", "user_tokens_per_minute", "user_concurrency")
OF_KEY = ("requests_per_minute", "tokens_per_minute", "concurrency")
ALL_OF_KEY = (*OF_KEY, "tokens_per_day", *OF_USER)


def rate_limits(*stored: int | None) -> RateLimits | None:
    """Three columns, in the order of ``OF_KEY`` or ``OF_USER``; None where all of them are empty."""
    return RateLimits(*(value or 0 for value in stored)) if any(stored) else None
