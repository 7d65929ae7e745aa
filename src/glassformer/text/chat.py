"""Conversations as one prompt, by the Jinja templates that Hugging Face's tokenizers and GGUF files hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from glassformer.errors import UserError
from glassformer.text.tokenizer import Tokenizer

Message = Mapping[str, str]
"""``role`` (system, user, assistant) and ``content``."""


def chat_ids(tokenizer: Tokenizer, template: str, messages: Sequence[Message]) -> list[int]:
    """The ids of a conversation, up to where the assistant's answer begins.

    Special tokens are those that the template writes; in what was said, the same letters are plain text.

    Raises:
        UserError: The template is not one, or refuses the conversation.
    """
    special = _special(tokenizer)
    spelt = re.compile("|".join(re.escape(token) for token in sorted(special, key=len, reverse=True)) or r"(?!)")
    said = "".join(message["content"] for message in messages) + template
    mark = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in said)
    marked = [
        {**message, "content": spelt.sub(lambda found: found[0][0] + mark + found[0][1:], message["content"])}
        for message in messages
    ]
    text = _render(template, marked, tokenizer)
    ids: list[int] = []
    for part in re.split(f"({spelt.pattern})", text) if special else [text]:
        ids += [special[part]] if part in special else tokenizer.encode(part.replace(mark, ""))
    return ids


def _special(tokenizer: Tokenizer) -> dict[str, int]:
    backend: Any = tokenizer.backend
    if hasattr(backend, "get_added_tokens_decoder"):
        return {token.content: index for index, token in backend.get_added_tokens_decoder().items()}
    return {backend.IdToPiece(index): index for index in range(tokenizer.vocab_size) if backend.IsControl(index)}


def _render(template: str, messages: Sequence[Message], tokenizer: Tokenizer) -> str:
    def token(index: int | None) -> str:
        return "" if index is None else tokenizer.id_to_token(index)

    try:
        return _compiled(template).render(
            messages=list(messages),
            add_generation_prompt=True,
            bos_token=token(tokenizer.bos_id),
            eos_token=token(tokenizer.eos_id),
            tools=None,
            documents=None,
        )
    except Exception as error:  # whatever somebody's template does
        raise UserError(f"the model's chat template refuses: {error}; --no-chat leaves it out") from None


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    # A template comes with the weights, from anyone: it may neither reach Python's objects nor change what it is given.
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment.from_string(template)


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
