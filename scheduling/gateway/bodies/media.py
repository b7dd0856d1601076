"""Images, audio and video in a prompt: inline only, and what they will count as until the engine has counted them.

A URL would be fetched by the engine, from inside the network it stands in, so only ``data:`` URLs pass.
"""

from __future__ import annotations

import base64
import binascii
import math
import re

from scheduling.core.outcomes import Reason
from scheduling.gateway.errors import Refusal

MAX_MEDIA = 64  # images, audio and video of one request
IMAGE_TOKENS = 1_000  # where its size cannot be read
PATCH = 28  # pixels of a side that become one token (Qwen2-VL; others need fewer tokens)
MAX_IMAGE_TOKENS = 16_384
VIDEO_TOKENS = 8_192  # 32 frames of 256
MAX_PIXELS = 2**29  # of all images of a request: an engine unpacks them at once, three bytes each
UNREAD_PIXELS = 178_956_970  # that one counts as whose size cannot be read: vLLM and Pillow take no more
FRAMES = 256  # of a video that is a sequence of images; vLLM takes 32 by default
AUDIO_BYTES = 640  # of a token: 25 a second of 16 kB, as compressed speech has them
_DATA = re.compile(r"data:(image|audio|video)/[a-zA-Z0-9.+-]{1,64};base64,", re.ASCII)
_JPEG = b"\xff\xd8"
_PIECES = 1_024  # of an image's file that are passed over in search of its size
_HEAD = 64 * 1024  # characters of an image in which its size is looked for


def linked_tokens(url: str, kind: str, param: str, pixels: list[int] | None = None) -> float:
    """Tokens that a ``data:`` URL of ``kind`` (image, audio, video) is taken for; refuses any other URL (400).
    ``pixels``: gets those of each image."""
    match = _DATA.match(url)
    if match is None:
        detail = f"{param}: Nothing is fetched here: send it as data:{kind}/...;base64,..."
        raise Refusal(Reason.INVALID_REQUEST, detail=detail, param=param)
    if match[1] != kind:
        detail = f"{param}: This is of type {match[1]}, not {kind}."
        raise Refusal(Reason.INVALID_REQUEST, detail=detail, param=param)
    data = url[match.end() :]
    if pixels is not None and match[0].lower().startswith("data:video/jpeg;"):
        for frame in data.split(",", FRAMES)[:FRAMES]:
            inline_tokens(frame, "image", param, pixels)
    return inline_tokens(data, kind, param, pixels)


def inline_tokens(data: str, kind: str, param: str, pixels: list[int] | None = None) -> float:
    """The same of base64 alone."""
    if kind == "video":
        return float(VIDEO_TOKENS)
    if kind == "audio":
        return len(data) * 3 / 4 / AUDIO_BYTES + 1
    try:
        head = base64.b64decode(data[:_HEAD], validate=True)
        size = image_size(head)
        if size is None and head[:2] == _JPEG:  # remarks of any length may stand before its size
            size = image_size(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        detail = f"{param}: This is not base64."
        raise Refusal(Reason.INVALID_REQUEST, detail=detail, param=param) from None
    if pixels is not None:
        pixels.append(UNREAD_PIXELS if size is None else size[0] * size[1])
    if size is None:
        return float(IMAGE_TOKENS)
    return float(min(MAX_IMAGE_TOKENS, max(1, math.ceil(size[0] / PATCH) * math.ceil(size[1] / PATCH))))


def image_size(head: bytes) -> tuple[int, int] | None:
    """Width and height in pixels, from the beginning of a PNG, GIF, JPEG or WebP file."""
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head[:4] == b"GIF8" and len(head) >= 13:
        return _gif_size(head)
    if head[:4] == b"RIFF" and head[8:15] == b"WEBPVP8" and len(head) >= 30:
        return _webp_size(head)
    if head[:2] != _JPEG:
        return None
    at = 2
    for _ in range(_PIECES):
        if at + 9 > len(head) or head[at] != 0xFF:
            break
        marker, size = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame's head
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
        at += 2 + max(2, size)
    return None


def _gif_size(head: bytes) -> tuple[int, int]:
    """The canvas or, where it is larger, what the first picture reaches, for which decoders extend the canvas."""
    width, height = (int.from_bytes(head[at : at + 2], "little") for at in (6, 8))
    at = 13 + (3 << (head[10] & 7) + 1 if head[10] & 0x80 else 0)
    inside = False  # an extension: blocks, each with its length, the last one of none
    for _ in range(_PIECES):
        if inside:
            inside = at < len(head) and head[at] > 0
            at += head[at] + 1 if at < len(head) else 1
        elif head[at : at + 1] == b"!":
            inside, at = True, at + 2
        else:
            break
    if head[at : at + 1] == b"," and len(head) >= at + 9:
        left, top, wide, high = (int.from_bytes(head[at + i : at + i + 2], "little") for i in (1, 3, 5, 7))
        return max(width, left + wide), max(height, top + high)
    return width, height


def _webp_size(head: bytes) -> tuple[int, int] | None:
    if head[15:16] == b"X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if head[15:16] == b"L" and head[20] == 0x2F:
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if head[15:16] == b" " and head[23:26] == b"\x9d\x01\x2a":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return None
