"""Tokenizers and chat templates of models."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import _binding


class Tokenizer:
    """The tokenizer of a folder, of a tokenizer file or of a GGUF file; ``"bytes"`` needs no file.

    Errors: `colossal.Error` for any other name, for a file that cannot be read, and for ids outside the vocabulary.
    """

    def __init__(self, name: str | os.PathLike[str]) -> None:
        self._held = _binding.Tokenizer(os.fspath(name))

    @classmethod
    def _of(cls, held: _binding.Tokenizer) -> "Tokenizer":
        tokenizer = cls.__new__(cls)
        tokenizer._held = held
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text alone, without a begin or end token."""
        return self._held.encode(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Returns the ids of a text with the special tokens that a model expects before a prompt."""
        return self._held.encode_prompt(text)

    def encode_whole(self, text: str) -> list[int]:
        """Returns the ids of a text with all special tokens of the tokenizer's files (BERT: [CLS], [SEP])."""
        return self._held.encode_whole(text)

    def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns ``encode(text)`` of each text, computed on all cores."""
        return self._held.encode_all(list(texts))

    def decode(self, ids: Sequence[int], with_special: bool = False) -> str:
        """Returns the text of `ids`. Bytes that are no UTF-8 become U+FFFD; special tokens are left out."""
        return self._held.decode(list(ids), with_special)

    def piece(self, id: int) -> bytes:
        """Returns the bytes that a token stands for within a text; they may be a part of a character."""
        return self._held.piece(id)

    def spelling(self, id: int) -> str:
        """Returns the token as the vocabulary spells it."""
        return self._held.spelling(id)

    def __len__(self) -> int:
        """Returns the size of the vocabulary."""
        return self._held.vocabulary_size()

    @property
    def begin_id(self) -> int | None:
        """The id of the token that opens a text; None = none."""
        return _present(self._held.begin_id())

    @property
    def end_id(self) -> int | None:
        """The id of the token that ends a document; None = none."""
        return _present(self._held.end_id())

    @property
    def mask_id(self) -> int | None:
        """The id of the token that marks a position for the model to fill in; None = none."""
        return _present(self._held.mask_id())


class ChatTemplate:
    """The chat templates of a Hugging Face folder or of a GGUF file.

    Errors: `colossal.Error` if there is none, if it cannot be parsed, or if it does not fit the messages.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._held = _binding.ChatTemplate(os.fspath(folder))

    @classmethod
    def _of(cls, held: _binding.ChatTemplate) -> "ChatTemplate":
        template = cls.__new__(cls)
        template._held = held
        return template

    @property
    def names(self) -> list[str]:
        """The names of the templates: "default", "tool_use", ..."""
        return self._held.names()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> str:
        """Returns the text of a chat, with special tokens: encode it with `Tokenizer.encode`.

        With `add_generation_prompt` it ends where the assistant's answer begins. `variables` are further variables of
        the template, such as ``{"enable_thinking": False}``. `name` selects one of several templates.
        """
        chat = _chat(messages, tools, documents, variables)
        chat["add_generation_prompt"] = add_generation_prompt
        return self._held.render(json.dumps(chat), name)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        answers: str = "all",
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        end_ids: Sequence[int] = (),
    ) -> tuple[list[int], list[int]]:
        """Returns the ids of a chat and their labels, for training: a label is the id if the token counts, else -100.

        Labels are not shifted: `labels[i]` is of the token `ids[i]`. `answers` is "all", "last" or "everything", which
        counts prompts too. A message with ``"weight": 0`` or ``"train": False`` does not count. The token that ends an
        answer counts. `end_ids` are tokens at which generation stops, besides the tokenizer's own end token.

        Errors: `colossal.Error` for an unknown role, a chat without an answer, an empty answer, or a template without
        generation blocks that writes the beginning of a chat differently than the whole.
        """
        chat = _chat(messages, tools, documents, variables)
        return self._held.encode(tokenizer._held, json.dumps(chat), answers, list(end_ids))


def _chat(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    documents: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns a chat as the library reads it."""
    chat: dict[str, Any] = {"messages": list(messages)}
    if tools is not None:
        chat["tools"] = list(tools)
    if documents is not None:
        chat["documents"] = list(documents)
    if variables is not None:
        chat["chat_template_kwargs"] = dict(variables)
    return chat


def _present(id: int) -> int | None:
    return None if id < 0 else id
