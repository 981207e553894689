"""Generation in this process: an engine that answers many requests at a time."""

import asyncio
import dataclasses
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from . import _binding
from .error import Error
from .local_model import WAIT, LocalModel
from .own_process import OwnProcess
from .text import ChatTemplate, Tokenizer

Prompt = str | Sequence[int]
"""A text, or a list of token ids."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are sampled. None = what the model's folder recommends (generation_config.json).

    The names are those of the options of `colossal generate`, and their help describes them.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None  #: prompt i of `Engine.generate` uses seed + i


class LogProbabilities(NamedTuple):
    """Natural logarithms of probabilities at one position, before temperature, penalties and filters."""

    own: float  #: of the token of the answer
    best: list[tuple[int, float]]  #: ids and values of the most probable tokens


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to one prompt."""

    text: str  #: without the prompt; "" for a model without a tokenizer
    ids: list[int]  #: new tokens without the end token
    ended: str  #: "end" (token), "length", "positions" (no more room), "stop" (text) or "cancelled"
    log_probabilities: list[LogProbabilities] | None = None  #: one per id, if they were asked for


class Request:
    """A request that runs, from `Engine.submit`.

    Iterate it (``for`` or ``async for``) for pieces of text, ``await`` it or call `result` for the whole answer. All of
    these may be combined: each iteration begins at the first piece. A request that is not read runs to its end; one
    that is no longer referenced is cancelled. Any thread may call the methods.
    """

    def __init__(self, handle: _binding.Request, with_scores: bool) -> None:
        self._own = OwnProcess("engine", "a request", "send texts to the child instead")
        self._held = handle
        self._lock = threading.Lock()  # guards the order of what is taken
        self._pieces: list[str] = []
        self._ids: list[int] = []
        self._scores: list[LogProbabilities] | None = [] if with_scores else None
        self._ended: str | None = None

    @property
    def _handle(self) -> _binding.Request:
        self._own.require()
        return self._held

    def cancel(self) -> None:
        """Ends the request; the answer keeps what arrived before. Does nothing after the end."""
        self._handle.cancel()

    def result(self, timeout: float | None = None) -> Answer:
        """Waits for the answer. Raises TimeoutError after `timeout` seconds; the request goes on then."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._ended is None:
            wait = WAIT if end is None else min(WAIT, end - time.monotonic())
            self._take(max(wait, 0))
            if self._ended is None and end is not None and time.monotonic() >= end:
                raise TimeoutError(f"the request did not end within {timeout} s")
        return self._answer()

    def __iter__(self) -> Iterator[str]:
        shown = 0
        while True:
            while shown < len(self._pieces):
                shown += 1
                yield self._pieces[shown - 1]
            if self._ended is not None and shown == len(self._pieces):
                return
            self._take(WAIT)

    async def __aiter__(self) -> AsyncIterator[str]:
        shown = 0
        while True:
            while shown < len(self._pieces):
                shown += 1
                yield self._pieces[shown - 1]
            if self._ended is not None and shown == len(self._pieces):
                return
            await self._take_soon()

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._result_soon().__await__()

    async def _result_soon(self) -> Answer:
        while self._ended is None:
            await self._take_soon()
        return self._answer()

    def _answer(self) -> Answer:
        return Answer("".join(self._pieces), list(self._ids), self._ended or "", self._scores)

    def _take(self, seconds: float) -> None:
        """Waits at most `seconds` for the next part and keeps it."""
        handle = self._handle  # before the lock, which a thread of the parent may hold at a fork
        with self._lock:
            if self._ended is not None:
                return
            text, ids, scores, ended = handle.next(seconds)
            if text:
                self._pieces.append(text)
            self._ids += ids
            if self._scores is not None:
                self._scores += [LogProbabilities(own, best) for own, best in scores]
            self._ended = ended

    async def _take_soon(self) -> None:
        """Takes the next part once there is one. If the waiting task is cancelled, so is the request."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        descriptor = os.dup(self._handle.descriptor())  # a loop has one reader per descriptor, tasks may be several
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._take(0)


class Engine:
    """A model of a run folder, a Hugging Face folder or a GGUF file that generates text in this process.

    One thread of the engine's own runs the model. Requests of all threads and tasks share its steps, and an answer does
    not depend on other requests. `close`, or the end of a ``with`` block, frees the model.

    The options are those of `colossal generate`: `precision` is the dtype of weights and activations, `quantize` is
    int8, int4 or fp8, `kv_cache` the size of the cache of keys and values, `draft` a smaller model that drafts tokens.
    `adapter` is a folder of peft or a run, whose adapters are put onto the model. If `folder` itself is a run with
    adapters, `base` names the model on which they were trained, if it has moved. `adapters` has several, by names: each
    request chooses one with ``adapter=``, or none. The chat template is that of the adapter, if its folder has one, or
    else that of the model. Of a run with training.ema the average of the weights is used, and with `no_ema` the last
    ones.

    Errors: `colossal.Error` with the command's message.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        adapter: str | os.PathLike[str] | None = None,
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
        base: str | os.PathLike[str] | None = None,
        no_ema: bool | None = None,
        precision: str | None = None,
        quantize: str | None = None,
        group_size: int | None = None,
        kv_cache: str | int = "1GiB",
        kv_cache_dtype: str | None = None,
        step_tokens: int | None = None,
        draft: str | os.PathLike[str] | None = None,
        draft_tokens: int | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        device: str | None = None,
        memory_device: str | int | None = None,
        memory_host: str | int | None = None,
        memory_disk: str | os.PathLike[str] | None = None,
    ) -> None:
        given = dict(locals())
        given["adapters"] = [f"{name}={os.fspath(path)}" for name, path in (adapters or {}).items()] or None
        own = OwnProcess("engine", "an engine", "make an engine in the child, or start it with the method spawn")
        self._model = LocalModel(_binding.Engine, given, own)
        self._folder = os.fspath(folder)
        held = self._model.held.tokenizer()
        self._tokenizer = None if held is None else Tokenizer._of(held)
        self._templates: dict[str, ChatTemplate] = {}  # by the names of adapters

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None for a folder without one, whose prompts are ids."""
        return self._tokenizer

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a prompt and its answer."""
        return self._model.held.max_length()

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        sampling: Sampling | None = None,
        *,
        max_tokens: int = 100,
        stop: str | Sequence[str] = (),
        json_schema: Mapping[str, Any] | None = None,
        log_probabilities: int | None = None,
        adapter: str = "",
    ) -> list[Answer]:
        """Returns the answer to each prompt, in order. One text is one prompt.

        `log_probabilities` is the number of most probable tokens to report at each position. With `json_schema` every
        answer is JSON of that schema. `adapter` is the name of one of the engine's adapters, "" the model without one.
        Ctrl-C ends all requests of the call.
        """
        every = [prompts] if isinstance(prompts, str) else prompts
        options = _options(sampling, max_tokens, stop, json_schema, log_probabilities)
        requests: list[Request] = []
        try:
            for index, prompt in enumerate(every):
                requests.append(self._submit(prompt, options, index, adapter))
            return [request.result() for request in requests]
        finally:
            for request in requests:
                request.cancel()

    def submit(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int = 100,
        stop: str | Sequence[str] = (),
        json_schema: Mapping[str, Any] | None = None,
        log_probabilities: int | None = None,
        adapter: str = "",
    ) -> Request:
        """Starts a request and returns at once. The options are those of `generate`."""
        return self._submit(prompt, _options(sampling, max_tokens, stop, json_schema, log_probabilities), 0, adapter)

    def log_probabilities(
        self, prompts: str | Sequence[Prompt], answers: str | Sequence[Prompt], *, adapter: str = ""
    ) -> list[list[float]]:
        """Returns the natural logarithms of the probabilities of the tokens of each given answer, in order.

        ``prompts[i]`` and ``answers[i]`` are both texts or both lists of ids, with at least one token each. Two texts
        are encoded as one text, and the answer is what follows the ids of its prompt. White space at the end of a
        prompt belongs to the answer. If a token crosses the border, the two texts are encoded apart: so the answer is
        scored whole, and nothing of the prompt is. Nothing is generated, and sampling options have no effect. Answers
        to one prompt that stand side by side read its full cache blocks once. Ctrl-C ends all requests of the call.
        """
        every = [[one] if isinstance(one, str) else one for one in (prompts, answers)]
        if len(every[0]) != len(every[1]):
            raise ValueError(f"prompts and answers must be equally many: got {len(every[0])} and {len(every[1])}")
        pairs = [self._pair(prompt, answer) for prompt, answer in zip(*every, strict=True)]
        requests = self._model.held.score(pairs, adapter)
        try:
            return [_scores_of(request) for request in requests]
        finally:
            for request in requests:
                request.cancel()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling | None = None,
        *,
        max_tokens: int = 1024,
        stop: str | Sequence[str] = (),
        json_schema: Mapping[str, Any] | None = None,
        log_probabilities: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        adapter: str = "",
    ) -> Answer:
        """Returns the assistant's answer to the messages, such as ``[{"role": "user", "content": "Hello"}]``.

        For pieces of the answer, pass `chat_prompt` to `submit`.
        """
        prompt = self.chat_prompt(messages, tools=tools, variables=variables, adapter=adapter)
        return self.generate(
            [prompt],
            sampling,
            max_tokens=max_tokens,
            stop=stop,
            json_schema=json_schema,
            log_probabilities=log_probabilities,
            adapter=adapter,
        )[0]

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        adapter: str = "",
    ) -> list[int]:
        """Returns the tokens of a chat up to the assistant's answer, by the template of the adapter or of the model."""
        if self._tokenizer is None:
            raise Error("engine", f"{self._folder} holds no tokenizer, which a chat needs; name one with tokenizer=")
        if adapter not in self._templates:
            self._templates[adapter] = ChatTemplate._of(self._model.held.chat_template(adapter))
        text = self._templates[adapter].render(messages, tools=tools, add_generation_prompt=True, variables=variables)
        return self._tokenizer.encode(text)

    def close(self) -> None:
        """Ends unfinished requests as cancelled and frees the model. Does nothing in a forked child."""
        self._model.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pair(self, prompt: Prompt, answer: Prompt) -> tuple[list[int], list[int]]:
        if isinstance(prompt, str) and isinstance(answer, str):
            return self._model.held.answer_ids(prompt, answer)
        if isinstance(prompt, (str, int)) or isinstance(answer, (str, int)):
            raise TypeError(f"a prompt and its answer must both be texts or lists of ids: got {prompt!r}, {answer!r}")
        return list(prompt), list(answer)

    def _submit(self, prompt: Prompt, options: dict[str, Any], index: int, adapter: str) -> Request:
        if isinstance(prompt, int):
            raise TypeError(f"a prompt must be a text or a list of ids: got {prompt}; pass a list of prompts")
        ids = self._model.held.prompt_ids(prompt) if isinstance(prompt, str) else list(prompt)
        return Request(self._model.held.submit(ids, json.dumps(options), index, adapter), "logprobs" in options)


def _scores_of(request: _binding.Request) -> list[float]:
    while True:
        scores = request.next_scores(WAIT)
        if scores is not None:
            return scores


def _options(
    sampling: Sampling | None,
    max_tokens: int,
    stop: str | Sequence[str],
    json_schema: Mapping[str, Any] | None,
    log_probabilities: int | None,
) -> dict[str, Any]:
    """Returns the options as a line of `colossal generate --prompts` has them."""
    options: dict[str, Any] = {"max_tokens": max_tokens}
    if sampling is not None:
        options.update((key, value) for key, value in vars(sampling).items() if value is not None)
    if stop:
        options["stop"] = [stop] if isinstance(stop, str) else list(stop)
    if json_schema is not None:
        options["json_schema"] = json_schema
    if log_probabilities is not None:
        options["logprobs"] = log_probabilities
    return options
