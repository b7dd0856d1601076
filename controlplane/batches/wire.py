"""OpenAI's objects of files and batches, as the SDK reads them, and the lines of a batch's files."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from controlplane.batches.models import Batch, Status, StoredFile

encode = msgspec.json.Encoder().encode


def _epoch(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def file_object(row: StoredFile) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "object": "file",
        "bytes": row.bytes,
        "created_at": _epoch(row.created_at),
        "expires_at": _epoch(row.expires_at),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
    }


def batch_object(row: Batch) -> dict[str, Any]:
    ended = {status: _epoch(row.ended_at) if row.status == status else None for status in Status}
    return {
        "id": row.public_id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": None if row.status == Status.VALIDATING else row.model or None,  # which the lines say
        "errors": {"object": "list", "data": row.problems} if row.problems else None,
        "input_file_id": row.input_file,
        "completion_window": row.completion_window,
        "status": row.status,
        "output_file_id": row.output_file or None,
        "error_file_id": row.error_file or None,
        "created_at": _epoch(row.created_at),
        "in_progress_at": _epoch(row.in_progress_at),
        "expires_at": _epoch(row.expires_at),
        "finalizing_at": _epoch(row.finalizing_at),
        "completed_at": ended[Status.COMPLETED],
        "failed_at": ended[Status.FAILED],
        "expired_at": ended[Status.EXPIRED],
        "cancelling_at": _epoch(row.cancelling_at),
        "cancelled_at": ended[Status.CANCELLED],
        "request_counts": {"total": row.total, "completed": row.completed, "failed": row.failed},
        "usage": {
            "input_tokens": row.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": row.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": row.input_tokens + row.output_tokens,
        },
        "metadata": row.metadata,
    }


def answered_line(request_id: str, custom_id: str, status: int, body: bytes) -> str:
    """A line that was answered, whatever the answer was. ``body``: JSON."""
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    return encode({"id": request_id, "custom_id": custom_id, "response": response, "error": None}).decode()


def unanswered_line(request_id: str, custom_id: str, code: str, message: str) -> str:
    """A line that was not run."""
    error = {"code": code, "message": message}
    return encode({"id": request_id, "custom_id": custom_id, "response": None, "error": error}).decode()
