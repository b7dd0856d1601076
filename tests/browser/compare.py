"""Pictures of pages, kept small and compared with tolerance; all of it done by the browser that takes them.

A picture is kept at half its size as WebP. Two pictures are compared by blocks of 8 x 8 CSS pixels: by the mean colour
of each, in which antialiasing and what compression loses hardly show, while a text or border that moved does.

Pictures depend on fonts and on Chromium: :func:`fingerprint` says which those are here.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, Page

QUALITY = 0.75
APART = 14  # of 255, by which the mean colour of a block may differ
BLOCKS = 6  # so many blocks may differ by more: a blinking pixel, not a letter's row

FONTS = """async () => {
  await document.fonts.ready;
  const code = document.body.appendChild(document.createElement("code"));
  code.className = "font-mono";
  const families = [document.body, code].map(element => getComputedStyle(element).fontFamily);
  code.remove();
  const pen = document.createElement("canvas").getContext("2d");
  return families.flatMap(family => [12, 14, 18].map(px => {
    pen.font = `${px}px ${family}`;
    return Math.round(pen.measureText("Quartermaster 0123456789 Wellenreiter fi").width * 10) / 10;
  }));
}"""

# Runs in a page of its own: draws a PNG at half its size, and gives it as WebP.
SHRINK = """async ([png, quality]) => {
  const image = await createImageBitmap(await (await fetch("data:image/png;base64," + png)).blob());
  const canvas = new OffscreenCanvas(Math.ceil(image.width / 2), Math.ceil(image.height / 2));
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  const bytes = new Uint8Array(await (await canvas.convertToBlob({type: "image/webp", quality})).arrayBuffer());
  return bytes.toBase64 ? bytes.toBase64() : btoa([...bytes].map(one => String.fromCharCode(one)).join(""));
}"""

# Size of both, and where blocks (4 x 4 of the halved picture) are further apart than they may be.
COMPARE = """async ([before, after, apart]) => {
  const read = async text => {
    const image = await createImageBitmap(await (await fetch("data:image/webp;base64," + text)).blob());
    const pen = new OffscreenCanvas(image.width, image.height).getContext("2d");
    pen.drawImage(image, 0, 0);
    return pen.getImageData(0, 0, image.width, image.height);
  };
  const [a, b] = [await read(before), await read(after)];
  const sizes = [[a.width, a.height], [b.width, b.height]];
  if (a.width !== b.width || a.height !== b.height) return {sizes, blocks: []};
  const blocks = [];
  for (let y = 0; y < a.height; y += 4) for (let x = 0; x < a.width; x += 4) {
    const sum = [0, 0, 0]; let n = 0;
    for (let v = y; v < Math.min(y + 4, a.height); v++) for (let u = x; u < Math.min(x + 4, a.width); u++, n++)
      for (let c = 0; c < 3; c++) sum[c] += a.data[(v * a.width + u) * 4 + c] - b.data[(v * a.width + u) * 4 + c];
    const most = Math.max(...sum.map(one => Math.abs(one) / n));
    if (most > apart) blocks.push([x * 2, y * 2, Math.round(most)]);
  }
  return {sizes: [], blocks};
}"""


@dataclass(frozen=True)
class Difference:
    """Where two pictures are apart: the left upper corner of each block, in CSS pixels, with how far."""

    sizes: list[list[int]]
    blocks: list[tuple[int, int, int]]

    def __bool__(self) -> bool:
        return bool(self.sizes) or len(self.blocks) > BLOCKS

    def __str__(self) -> str:
        if self.sizes:
            return f"another size: {self.sizes}"
        left, top = min(x for x, _, _ in self.blocks), min(y for _, y, _ in self.blocks)
        right, bottom = max(x for x, _, _ in self.blocks) + 8, max(y for _, y, _ in self.blocks) + 8
        return f"{len(self.blocks)} blocks differ, within x {left} to {right}, y {top} to {bottom}"


class Darkroom:
    """A blank page that works on pictures."""

    def __init__(self, browser: Browser) -> None:
        self._page = browser.new_page()

    def close(self) -> None:
        self._page.close()

    def shrink(self, png: bytes) -> bytes:
        text: str = self._page.evaluate(SHRINK, [base64.b64encode(png).decode(), QUALITY])
        return base64.b64decode(text)

    def compare(self, before: bytes, after: bytes) -> Difference:
        """Both as :meth:`shrink` gives them."""
        texts = [base64.b64encode(one).decode() for one in (before, after)]
        found: dict[str, Any] = self._page.evaluate(COMPARE, [*texts, APART])
        return Difference(found["sizes"], [tuple(block) for block in found["blocks"]])


def fingerprint(browser: Browser, page: Page) -> dict[str, Any]:
    """What pictures depend on: Chromium's major version, and how wide a text is in the fonts of the console, which
    ``page`` shows."""
    return {"chromium": int(browser.version.partition(".")[0]), "widths": page.evaluate(FONTS)}
