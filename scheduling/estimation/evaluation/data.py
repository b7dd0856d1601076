"""Prompts with the lengths of their answers, from files as people have them.

CSV, JSON lines, JSON and Parquet, gzipped or not. Columns are found by their usual names; where token counts are
missing they are counted by a tokenizer, or estimated from words and bytes.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import json
import math
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from scheduling.core.estimate.tokens import raw_tokens

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz", ".ndjson", ".ndjson.gz")
TRAIN_SHARE = 0.7
LEAST_OF_LABEL = 100  # examples of a label that is an application of its own
MAX_TOKENS = 10_000_000  # what says more is no count of tokens

_PROMPT = ("prompt", "question", "instruction", "query", "input", "text", "messages", "conversation", "conversations")
_RESPONSE = ("response", "answer", "output", "completion", "generation", "reply")
_MODEL = ("model", "model_name", "model_id")
_APPLICATION = ("application", "app", "key", "key_id", "api_key", "client", "user")
_TENANT = ("tenant", "organisation", "organization", "team")
_LABEL = ("category", "label", "task", "topic", "cluster")
_TIME = ("timestamp", "time", "created_at", "created", "tstamp", "received_at", "received_s", "arrived_at")
_INPUT = ("prompt_tokens", "input_tokens", "num_prefill_tokens", "input_length", "context_tokens", "contexttokens")
_OUTPUT = (
    "response_tokens", "output_tokens", "completion_tokens", "num_decode_tokens", "output_length", "generated_tokens",
    "generatedtokens",
)  # fmt: skip


class DataError(Exception):
    """A file cannot be used; the text says which and why."""


class NoExamples(DataError):
    """A file that can be read holds no prompt with its answer."""


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt and the length of its answer."""

    file: str
    prompt: str
    model: str
    application: str
    tenant: str
    label: str  # what the file says it is about; "" where it says nothing
    input_tokens: float
    output_tokens: int
    output_words: int | None  # None where the answer itself is not in the file
    at: float | None  # seconds on the file's clock


Count = Callable[[str], float]


def deal(examples: Sequence[Example], tenants: int) -> list[Example]:
    """Gives each example without a tenant one: its application's, where the file names any, else one of ``tenants`` by
    a hash of the prompt, the ``k``-th with a share in proportion to ``1/k``. All answers to one prompt are one
    tenant's."""
    names = [f"tenant-{k:02d}" for k in range(1, tenants + 1)]
    upto = list(accumulate(1.0 / k for k in range(1, tenants + 1)))
    dealt = []
    for example in examples:
        name = example.tenant or ("" if example.application == example.file else example.application)
        if not name:
            name = names[min(tenants - 1, bisect_right(upto, _hash(example.prompt, b"tenant") * upto[-1]))]
        dealt.append(replace(example, tenant=name))
    return dealt


def by_label(examples: Sequence[Example]) -> list[Example]:
    """Makes each label that is common enough an application of its own: an application's prompts are of one kind."""
    counts = Counter(example.label for example in examples)
    return [replace(e, application=e.label) if e.label and counts[e.label] >= LEAST_OF_LABEL else e for e in examples]


def files_of(paths: Iterable[str]) -> list[Path]:
    """The files, and those in the folders. Raises :class:`DataError`."""
    files: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES))
            if not inside:
                raise DataError(f"{path} holds no file that ends in {', '.join(SUFFIXES)}")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"there is no file or folder {path}")
    return files


def read(path: Path, count: Count | None = None) -> list[Example]:
    """The examples of one file; rows without prompt or answer are left out. ``count``: a tokenizer's.

    Raises:
        DataError: not readable, or without the columns that are needed.
    """
    examples = []
    seen: set[str] = set()
    for row in _rows(path):
        named = {str(k).lower(): v for k, v in row.items()}
        seen.update(named)
        prompt = _prompt(named)
        response = _text(named, _RESPONSE)
        output = _tokens(named, _OUTPUT)
        if not prompt or (output is None and response is None):
            continue
        if output is None and response is not None:
            output = (count or raw_tokens)(response)
        given = _tokens(named, _INPUT)
        if given is None:
            given = (count or raw_tokens)(prompt)
        assert output is not None
        if output < 1:
            continue
        label = _word(named, _LABEL)
        examples.append(
            Example(
                path.name, prompt, _word(named, _MODEL), _word(named, _APPLICATION) or path.name,
                _word(named, _TENANT), label, float(given), round(output),
                None if response is None else len(response.split()), _moment(named),
            )
        )  # fmt: skip
    if not examples:
        raise NoExamples(
            f"{path}: no row has a prompt ({', '.join(_PROMPT)}) and an answer ({', '.join(_RESPONSE)}) or its length "
            f"({', '.join(_OUTPUT)}, any ending). Its columns are: {', '.join(sorted(seen)) or 'none'}"
        )
    return examples


def read_all(
    names: Iterable[str], count: Count | None = None, skip: Callable[[str], None] = lambda why: None
) -> list[Example]:
    """The examples of files, and of those in folders. In a folder a file without any prompts is none of ours: ``skip``
    is told. Raises :class:`DataError`."""
    examples: list[Example] = []
    left_out: list[NoExamples] = []
    for name in names:
        for path in files_of([name]):
            try:
                examples += read(path, count)
            except NoExamples as problem:
                if not Path(name).is_dir():
                    raise
                left_out.append(problem)
    if left_out and not examples:
        raise left_out[0]
    for one in left_out:
        skip(str(one))
    return examples


def split(examples: list[Example]) -> tuple[list[Example], list[Example], str]:
    """Train, test and how: by time where every example has one, else by a hash of the prompt.

    All answers to one prompt fall on one side of a hash split, so that none is predicted from its twin. The hash is not
    the one that data sets are usually cut with.
    """
    if all(e.at is not None for e in examples):
        ordered = sorted(examples, key=lambda e: e.at or 0.0)
        at = round(len(ordered) * TRAIN_SHARE)
        return ordered[:at], ordered[at:], "time"
    train: list[Example] = []
    test: list[Example] = []
    for example in sorted(examples, key=lambda e: _hash(e.prompt + e.file, b"order")):
        (train if _hash(example.prompt, b"split") < TRAIN_SHARE else test).append(example)
    return train, test, "hash of the prompt"


def _hash(text: str, salt: bytes) -> float:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8, salt=salt).digest()
    return int.from_bytes(digest, "big") / 2.0**64


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    name = path.name
    try:
        if name.endswith(".parquet"):
            yield from _parquet(path)
            return
        raw = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
        text = raw.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    kind = name.removesuffix(".gz").rpartition(".")[2]
    try:
        if kind == "csv":
            csv.field_size_limit(1 << 30)
            yield from csv.DictReader(io.StringIO(text))
        elif kind == "json":
            content = json.loads(text)
            if isinstance(content, dict):
                content = next(
                    (content[name] for name in ("data", "rows") if isinstance(content.get(name), list)), [content]
                )
            for number, row in enumerate(content if isinstance(content, list) else [content], 1):
                yield _object(row, f"{path}, entry {number}")
        else:
            # not splitlines: a prompt may hold U+2028 and others of Unicode's line ends as they are
            for number, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    try:
                        yield _object(json.loads(line), where)
                    except (json.JSONDecodeError, RecursionError) as error:
                        raise DataError(f"{where}: not JSON ({error})") from error
    except (csv.Error, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _object(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with a prompt and its answer, found {type(row).__name__}")
    return row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as parquet  # large, and needed for nothing else
    except ImportError:
        raise DataError(f"{path}: Parquet needs the package pyarrow (pip install pyarrow)") from None
    for batch in parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _text(row: Mapping[str, Any], names: Iterable[str]) -> str | None:
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value:
            return value
    return None


def _prompt(row: Mapping[str, Any]) -> str:
    for name in _PROMPT:
        value = row.get(name)
        if isinstance(value, str) and value.startswith("[{"):
            with contextlib.suppress(json.JSONDecodeError):
                value = json.loads(value)
        if isinstance(value, str) and value.strip():
            more = row.get("input") if name == "instruction" else None
            return f"{value}\n\n{more}" if isinstance(more, str) and more else value
        if isinstance(value, list):
            turns = [t for t in value if isinstance(t, dict) and t.get("role", t.get("from")) in ("user", "human")]
            if turns:
                return str(turns[0].get("content", turns[0].get("value", "")))
    return ""


def _word(row: Mapping[str, Any], names: Iterable[str]) -> str:
    for name in names:
        value = row.get(name)
        if value not in (None, ""):
            return str(value)
    return ""


def _tokens(row: Mapping[str, Any], names: Iterable[str]) -> float | None:
    """The first column of these names, or whose name begins with one (``prompt_tokens_qwen``)."""
    for name in names:
        for column, value in row.items():
            if column == name or column.startswith(name + "_"):
                number = _finite(value)
                if number is not None and number <= MAX_TOKENS:
                    return number
    return None


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _moment(row: Mapping[str, Any]) -> float | None:
    value = _word(row, _TIME)
    if not value:
        return None
    number = _finite(value)
    if number is not None:
        return number
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
