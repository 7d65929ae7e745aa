"""What a model is given: a request's text as ids, or its image as pixels."""

from __future__ import annotations

import base64
import binascii
import io
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from glassformer.data.images import normalise, read_image
from glassformer.errors import UserError
from glassformer.explore.models import Opened
from glassformer.explore.problem import Problem, TooLong
from glassformer.explore.tokens import is_byte
from glassformer.sentences import Direction, checked, direction_of

MOST_CHARACTERS = 8000
MOST_PADDING = 64
MOST_PIXELS = 50_000_000
"""Of a picture: a small file may claim, or unfold to, many more."""
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""What browsers show; others of Pillow's readers start programs."""


class RunRequest(BaseModel):
    """The body of ``POST /api/runs``; ui/src/lib/types.ts tells what each field is."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    model: str
    text: str | None = None
    image: str | None = None
    source: str | None = Field(None, alias="from")
    to: str | None = None
    target: str | None = None
    prefix: list[int] | None = None
    beam_size: int | None = None
    max_new_tokens: int | None = None
    length_penalty: float | None = None
    pad: int | None = None


@dataclass
class Source:
    """What a model reads.

    Attributes:
        inputs: Ids (1, S), or pixels (1, C, H, W).
        tokens: Each as the page reads it; of an image, one a patch.
        mask: True where a token is real.
        direction: The languages meant, where the model has several.
        image: The picture as the model sees it, where there is one.
        cut: Whether the model has no positions for all of it.
    """

    inputs: Tensor
    tokens: list[dict[str, Any]]
    mask: list[bool]
    direction: Direction | None = None
    image: dict[str, Any] | None = None
    cut: bool = False

    @property
    def ids(self) -> list[int]:
        """Of the real tokens."""
        return [token["id"] for token, real in zip(self.tokens, self.mask, strict=True) if real]

    @property
    def mask_BS(self) -> Tensor | None:
        """The mask for a model; None where nothing is padding."""
        return None if all(self.mask) else torch.tensor([self.mask])


def read(opened: Opened, request: RunRequest, most: int) -> Source:
    """Reads a request's text or image.

    Raises:
        Problem: There is neither, or not what the model reads.
        TooLong: It has more than ``most`` tokens.
    """
    if opened.config.embed.type == "patches":
        return _image(opened, request)
    if request.image is not None:
        raise Problem(f"{opened.name} reads text; give it a text, not an image")
    text = checked(request.text or "", 1).strip("\n")
    if not text.strip():
        raise Problem("an empty text: type a word")
    if len(text) > MOST_CHARACTERS:
        raise TooLong(f"{len(text):,} characters, and at most {MOST_CHARACTERS:,} are read; shorten the text")
    if opened.source_tokens is None:
        raise Problem(f"{opened.name} has no tokenizer, so it reads no text; put its tokenizer.json beside it")
    if "\n" in text:
        text = text.replace("\n", " ")
    return _text(opened, request, text, most)


def _text(opened: Opened, request: RunRequest, text: str, most: int) -> Source:
    tokens, framing, config = opened.source_tokens, opened.framing, opened.config
    assert tokens is not None
    pieces = tokens.read(text)
    direction = None
    before, after = list(framing.before), list(framing.after)
    if config.kind == "encoder-decoder":
        sentences = opened.sentences
        direction = direction_of(text, sentences.possible_directions(request.source, request.to))
        if opened.translation and direction:
            before += opened.translation.tag(direction[1], opened.tokenizer)
    elif config.kind == "decoder":
        after = []
    if not pieces and not before:
        raise Problem("nothing of this text is left for the model; type another one")
    total = len(before) + len(pieces) + len(after)
    if total > most:
        raise TooLong(f"{total} tokens, and at most {most} are shown; shorten the text")
    stack = config.encoder or config.decoder
    limit = stack.max_len if stack is not None else None
    cut = limit is not None and total > limit
    if cut:
        assert limit is not None
        pieces = pieces[: max(0, limit - len(before) - len(after))]
    told = [tokens.one(index) for index in before]
    told += [tokens.one(index, span) for index, span in pieces]
    told += [tokens.one(index) for index in after]
    for token in told:  # what stands in the text says more than the piece
        if token["span"] is not None and not token["special"] and not is_byte(token["piece"]):
            token["text"] = text[slice(*token["span"])] or token["text"]
    padding = request.pad or 0
    if not 0 <= padding <= MOST_PADDING:
        raise Problem(f"pad {padding}: must be from 0 to {MOST_PADDING}")
    if config.kind == "decoder":
        padding = 0
    pad = opened.tokenizer.pad_id or 0
    ids = [token["id"] for token in told] + [pad] * padding
    mask = [True] * len(told) + [False] * padding
    return Source(torch.tensor([ids]), told + [tokens.one(pad)] * padding, mask, direction, cut=cut)


def _image(opened: Opened, request: RunRequest) -> Source:
    embed = opened.config.embed
    if not request.image:
        raise Problem(f"{opened.name} reads images; give it one, PNG or JPEG, in base64")
    try:
        data = base64.b64decode(request.image.partition("base64,")[2] or request.image, validate=True)
    except (binascii.Error, ValueError):
        raise Problem("the image is not base64") from None
    _check_size(data)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "image"
        file.write_bytes(data)
        try:
            pixels_CHW = read_image(file, embed.channels, embed.image_size)
        except UserError as error:
            raise Problem(str(error).replace(str(file), "the image")) from None
    half = (0.5,) * embed.channels
    pixels_BCHW = torch.from_numpy(normalise(pixels_CHW[None], embed.mean or half, embed.deviation or half))
    rows, columns = embed.grid
    names = ["[class]"] * embed.class_token + [f"{row},{column}" for row in range(rows) for column in range(columns)]
    tokens = [
        {"id": place, "piece": name, "text": name, "special": name == "[class]", "span": None}
        for place, name in enumerate(names)
    ]
    return Source(pixels_BCHW, tokens, [True] * len(tokens), image={"grid": [rows, columns], "png": _png(pixels_CHW)})


def _check_size(data: bytes) -> None:
    """Refuses a picture by its head alone, before anything is unfolded."""
    try:
        from PIL import Image
    except ImportError:  # the reader says what is missing
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                width, height = image.size
        except Image.DecompressionBombError:
            raise TooLong(f"the image: more than {MOST_PIXELS // 10**6} million pixels; make it smaller") from None
        except Exception:  # whatever a damaged head leads to
            raise Problem("the image: not an image that can be read; give a PNG or a JPEG") from None
    if width * height > MOST_PIXELS:
        most = f"at most {MOST_PIXELS // 10**6} million pixels are read"
        raise TooLong(f"the image: {width:,} × {height:,} pixels, and {most}; make it smaller")


def _png(pixels_CHW: np.ndarray) -> str:
    from PIL import Image

    pixels_HWC = (pixels_CHW.transpose(1, 2, 0) * 255).round().astype(np.uint8)
    image = Image.fromarray(pixels_HWC[..., 0] if pixels_HWC.shape[2] == 1 else pixels_HWC)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()
