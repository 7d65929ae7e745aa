"""A trace as a notebook shows it: a table of names, axes and shapes, with a small picture of each tensor."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from glassformer.trace.recorder import Trace

ROWS, COLUMNS = 24, 48
"""Most cells of a picture; of larger tensors, equal steps are shown."""
MOST = 400
"""Most tensors in a table."""


def to_html(trace: Trace) -> str:
    """The table. Colours are transparent where a number is 0, so that it reads on light and on dark pages."""
    names = list(trace)
    rows = "".join(_row(name, trace.axes(name), trace[name]) for name in names[:MOST])
    more = f"<p>… and {len(names) - MOST} more</p>" if len(names) > MOST else ""
    head = (
        "<tr>" + "".join(f"<th style='text-align:left'>{each}</th>" for each in ("name", "axes", "shape", "")) + "</tr>"
    )
    return (
        f"<details open><summary>{len(names)} tensors; <span style='color:#0072B2'>■</span> below 0, "
        "<span style='color:#D55E00'>■</span> above 0</summary>"
        f"<table>{head}{rows}</table>{more}</details>"
    )


def _row(name: str, axes: str, value: Tensor) -> str:
    shape = " × ".join(map(str, value.shape))
    picture = base64.b64encode(png(_plane(value))).decode()
    low, high = (f"{float(each):.3g}" for each in value.float().aminmax()) if value.numel() else ("", "")
    image = (
        f"<img alt='' title='{low} … {high}' src='data:image/png;base64,{picture}' "
        "style='image-rendering:pixelated;height:2.5em;max-width:12em;border:1px solid currentColor'>"
    )
    cells = (f"<code>{html.escape(name)}</code>", html.escape(axes), shape, image)
    return "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"


def _plane(value: Tensor) -> Tensor:
    """The last two dimensions of the first of everything else, with at most so many cells."""
    value = value.detach().float().cpu()
    while value.dim() > 2:
        value = value[0]
    plane = value.reshape(1, -1) if value.dim() < 2 else value
    rows, columns = (-(-size // most) for size, most in zip(plane.shape, (ROWS, COLUMNS), strict=True))
    return plane[:: max(rows, 1), :: max(columns, 1)]


def png(plane: Tensor) -> bytes:
    """A picture of a matrix: blue below 0, orange above, the more opaque the farther from 0; grey is no number."""
    from PIL import Image

    finite = plane.isfinite()
    most = plane[finite].abs().max().item() if finite.any() else 0.0
    strength = (plane.nan_to_num(0, 0, 0).abs() / (most or 1)).clamp(0, 1)
    colour = torch.where((plane < 0)[..., None], torch.tensor([0, 114, 178]), torch.tensor([213, 94, 0]))
    alpha = (strength * 255).round()
    colour = torch.where(finite[..., None], colour, torch.tensor([128, 128, 128]))
    alpha = torch.where(finite, alpha, torch.tensor(96.0))
    rgba = torch.cat([colour.float(), alpha[..., None]], -1).to(torch.uint8)
    stream = io.BytesIO()
    Image.fromarray(rgba.numpy(), "RGBA").save(stream, "PNG")
    return stream.getvalue()
