"""Drives `colossal serve` with the package openai: every route, streamed and not, and every class of error.
Log-probabilities of prompts and answers equal those of transformers, embeddings those of transformers and `colossal
embed`, greedy texts those of `colossal generate`, pictures those of `colossal draw`."""

import base64
import concurrent.futures
import json
import re
import time
import typing

import interop

openai, jsonschema, np, pydantic, torch = interop.need("openai", "jsonschema", "numpy", "pydantic", "torch")
import chat_folder  # noqa: E402 - it needs packages
from chat_folder import POSITIONS, TOOLS  # noqa: E402
from running_server import Server  # noqa: E402

MODEL = "tiny-chat"
KEYS = ["first-key-of-two", "second-key-of-two"]
PROMPTS = [f"{start} {end}" for start in ("the cat", "a dog and", "rain on the", "Hello, " * 40)
           for end in ("saw", "in the tree", "came", "7")]


def client_of(server, key="none", **options):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=120, **options)


def refused(kind, call, *parts, param=None, code=None):
    """Checks the error of a call: its class, parts of its message, its field and its code."""
    try:
        answer = call()
    except openai.APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        assert type(error) is kind if isinstance(kind, type) else error.status_code == kind, (kind, error)
        assert body.get("type") in ("invalid_request_error", "rate_limit_error"), error.body
        for part in parts:
            assert part in error.message, (part, error.message)
        assert (body["param"], body["code"]) == (param, code), error.body
        return error
    raise AssertionError(("not refused", parts, answer))


# --- completions


class Judge:
    """The model's log-probabilities by transformers, in fp64."""

    def __init__(self, tokenizer, model):
        self.model = model
        self.spelled = [token.replace("\u0120", " ").replace("\u010a", "\n")
                        for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
        self.ids = {text: id for id, text in enumerate(self.spelled)}
        assert len(self.ids) == len(self.spelled)

    def check(self, ids, reported, best_count):
        """Checks the last tokens of `ids`, reported as (spelling, log-probability, {spelling: log-probability}).
        Returns the largest error."""
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0]
        # An error of a log-probability is at most that of its logit and that of the largest logit.
        limit = 2 * interop.rounding(self.model, torch.tensor(ids), 2**-24) * logits.abs().max().item()
        values, worst = logits.log_softmax(-1), 0
        for place, (spelling, logprob, best) in enumerate(reported, len(ids) - len(reported)):
            assert spelling == self.spelled[ids[place]], (place, spelling, ids[place])
            if place == 0:
                assert logprob is None and best is None, (logprob, best)
                continue
            row = values[place - 1]
            errors = [abs(logprob - row[ids[place]].item()),
                      *(abs(value - row[self.ids[text]].item()) for text, value in best.items())]
            # Tokens within rounding of each other may change places, but the values of the places may not.
            ours = sorted(best.values(), reverse=True)[:best_count]
            errors += [abs(a - b) for a, b in zip(ours, row.topk(best_count).values.tolist(), strict=True)]
            worst = max(worst, *errors)
            assert max(errors) <= limit, (place, spelling, errors, limit)
        return worst, limit


def generated(folder, prompts, *flags):
    """Returns {prompt: (text, reason)} of `colossal generate`."""
    file = interop.temp_dir / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    made = map(json.loads, interop.colossal("generate", "--from", folder, "--prompts", file, *flags).splitlines())
    return {one["prompt"]: (one["text"], {"end": "stop"}.get(one["ended"], "length")) for one in made}


def joined(stream):
    """Returns the texts and reasons of a stream of completions by choice, the number of events with text, and the
    usage."""
    texts, reasons, events, usage = {}, {}, 0, None
    for event in stream:
        assert event.object == "text_completion" and usage is None, event
        usage = event.usage
        assert bool(event.choices) != bool(usage), event
        for choice in event.choices:
            assert choice.index not in reasons, choice
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            events += bool(choice.text)
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, events, usage


def check_clients(server, folder):
    """32 clients at once get the greedy texts of `colossal generate`, streamed and not."""
    wanted, client = generated(folder, PROMPTS, "--max-tokens", 40), client_of(server)

    def ask(prompt, streamed):
        options = {"model": MODEL, "prompt": prompt, "max_tokens": 40, "temperature": 0}
        if streamed:
            texts, reasons, *_ = joined(client.completions.create(**options, stream=True))
            return prompt, (texts[0], reasons[0])
        choice = client.completions.create(**options).choices[0]
        return prompt, (choice.text, choice.finish_reason)

    with concurrent.futures.ThreadPoolExecutor(2 * len(PROMPTS)) as pool:
        for prompt, answer in pool.map(ask, PROMPTS * 2, [True] * len(PROMPTS) + [False] * len(PROMPTS)):
            assert answer == wanted[prompt], (prompt, answer, wanted[prompt])
    print("greedy texts of", 2 * len(PROMPTS), "clients equal those of generate")


def check_completions(server, tokenizer):
    create = lambda **options: client_of(server).completions.create(
        **{"model": MODEL, "temperature": 0, "max_tokens": 24} | options)
    ids = [tokenizer(prompt).input_ids for prompt in PROMPTS[:2]]
    one, two = (create(prompt=prompt).choices[0].text for prompt in PROMPTS[:2])
    for prompt in PROMPTS[:2], ids:
        made = create(prompt=prompt, n=2)
        assert [choice.index for choice in made.choices] == [0, 1, 2, 3] and made.object == "text_completion", made
        assert [choice.text for choice in made.choices] == [one, one, two, two], made
        assert made.usage.prompt_tokens == len(ids[0]) + len(ids[1]), made.usage
        assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens, made.usage
    assert create(prompt=ids[0]).choices[0].text == one

    # The default length is 16 tokens, and an answer that ignores end tokens has exactly max_tokens.
    made = client_of(server).completions.create(model="any name", prompt="7", temperature=0,
                                                extra_body={"ignore_eos": True, "own": {}})
    assert made.usage.completion_tokens == 16 and made.choices[0].finish_reason == "length", made
    made = create(prompt="7", max_tokens=100, extra_body={"ignore_eos": True})
    assert made.usage.completion_tokens == 100, made.usage

    # A bias of 100 makes a token certain, so texts are known; a stop string may span tokens, and is not shown.
    cat = tokenizer(" cat", add_special_tokens=False).input_ids
    options = {"prompt": "the", "logit_bias": {str(cat[0]): 100}, "max_tokens": 6}
    word = tokenizer.decode(cat[:1])
    assert create(**options).choices[0].text == 6 * word
    for stop, text in ((3 * word)[1:], word[:1]), (word[:1], ""):
        made = create(**options, stop=[stop, "never"]).choices[0]
        assert (made.text, made.finish_reason) == (text, "stop"), (stop, made)
    texts, reasons, *_ = joined(create(**options, stop=(3 * word)[1:], stream=True))
    assert (texts, reasons) == ({0: word[:1]}, {0: "stop"}), texts

    # The same seed draws the same text, and choice i draws by seed + i.
    draw = lambda **options: [choice.text for choice in create(prompt="rain", temperature=2, **options).choices]
    drawn = draw(seed=5, n=3)
    assert drawn == draw(seed=5, n=3) and len(set(drawn)) == 3, drawn
    assert drawn == [draw(seed=seed)[0] for seed in (5, 6, 7)], drawn
    assert len({draw()[0] for _ in range(4)}) > 1
    texts, reasons, events, usage = joined(create(prompt="rain", temperature=2, seed=5, n=3, stream=True,
                                                  stream_options={"include_usage": True}))
    assert [texts[i] for i in range(3)] == drawn and len(reasons) == 3 and events > 3, texts
    assert usage.prompt_tokens == len(tokenizer("rain").input_ids) and usage.completion_tokens >= events, usage
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1.5, "two", None]}}}
    made = create(prompt="Give me", temperature=2, max_tokens=60, extra_body={"response_format": schema}).choices[0]
    assert made.finish_reason == "stop" and json.loads(made.text) in (1.5, "two", None), made
    print("completions agree")


def check_prefixes(server):
    """A second request finds the blocks of its prompt."""
    prompt = "a long prompt: " + " ".join(map(str, range(90)))
    first, second = (client_of(server).completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
                     for _ in range(2))
    assert first.usage.prompt_tokens == second.usage.prompt_tokens > 128, first.usage
    assert first.usage.prompt_tokens_details.cached_tokens == 0, first.usage
    assert 64 <= second.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens, second.usage
    assert first.choices[0].text == second.choices[0].text
    return prompt


def check_logprobs(server, tokenizer, judge, known_prompt):
    """Log-probabilities of prompts and completions. `known_prompt` has blocks in the cache."""
    create = lambda **options: client_of(server).completions.create(
        **{"model": MODEL, "temperature": 0} | options).choices
    worst = limit = 0
    prompts = [*PROMPTS[:2], "x", known_prompt]
    for prompt, count, echo, best in [*((p, 0, True, 5) for p in prompts), (prompts, 3, True, 2),
                                      (PROMPTS[0], 8, False, 20),
                                      ([tokenizer(p).input_ids for p in prompts], 1, True, 1)]:
        for choice, own in zip(create(prompt=prompt, max_tokens=count, echo=echo, logprobs=best),
                               prompts if isinstance(prompt, list) else [prompt], strict=True):
            assert choice.text.startswith(own) == echo, choice
            reports, begin = choice.logprobs, tokenizer(own).input_ids
            reported = list(zip(reports.tokens, reports.token_logprobs, reports.top_logprobs, strict=True))
            answer = [judge.ids[text] for text in reports.tokens[len(begin) if echo else 0:]]
            assert len(answer) <= count and (count > 0 or choice.text == own), choice
            off, bound = judge.check(begin + answer, reported, best)
            worst, limit = max(worst, off), max(limit, bound)
            for token, offset in zip(reports.tokens, reports.text_offset, strict=True):
                is_there = token in chat_folder.SPECIAL or choice.text[offset:offset + len(token)] == token
                assert is_there, (token, offset, choice.text)
    # Events of a stream report the tokens whose text they have.
    tokens = []
    for event in client_of(server).completions.create(model=MODEL, temperature=0, prompt=PROMPTS[0], max_tokens=8,
                                                      logprobs=3, stream=True):
        for choice in event.choices:
            tokens += choice.logprobs.tokens if choice.logprobs else []
    assert tokens == create(prompt=PROMPTS[0], max_tokens=8, logprobs=3)[0].logprobs.tokens, tokens
    messages = chat_folder.HELLO
    made = client_of(server).chat.completions.create(model=MODEL, messages=messages, temperature=0, logprobs=True,
                                                     top_logprobs=4).choices[0]
    content = made.logprobs.content
    text = bytes(byte for token in content for byte in token.bytes).decode()
    assert text == made.message.content == chat_folder.HELLO_ANSWER
    reported = [(token.token, token.logprob, {best.token: best.logprob for best in token.top_logprobs})
                for token in content]
    ids = chat_folder.prompt_ids(tokenizer, messages) + [judge.ids[token.token] for token in content]
    off, bound = judge.check(ids, reported, 4)
    print("log-probabilities agree within", max(worst, off), "of", max(limit, bound))


def check_scores(server, tokenizer, judge):
    """The requests of lm-evaluation-harness (local-completions), which drops the one generated token from the lists:
    they must have it, also if it ends the answer."""
    begin = chat_folder.prompt_ids(tokenizer, chat_folder.HELLO)
    rest = tokenizer(chat_folder.HELLO_ANSWER, add_special_tokens=False).input_ids
    status, _, made = server.ask("POST", "/v1/completions",
                                 {"model": MODEL, "prompt": [begin + rest, begin + rest[:-2]], "temperature": 0,
                                  "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True})
    assert status == 200, made
    for choice, count in zip(made["choices"], (len(rest), len(rest) - 2), strict=True):
        lists = [choice["logprobs"][name][len(begin):-1] for name in ("tokens", "token_logprobs", "top_logprobs")]
        assert len(lists[0]) == count, (choice, count)
        judge.check(begin + rest[:count], list(zip(*lists, strict=True)), 1)
        assert all(logprob == max(best.values()) for logprob, best in zip(*lists[1:])), choice  # learned by heart
    first = made["choices"][0]
    assert first["logprobs"]["tokens"][-1] == "<|im_end|>" and first["finish_reason"] == "stop", made
    print("scores of lm-evaluation-harness agree")


# --- chats


def streamed_chat(stream):
    """Returns content, calls and reason of a streamed chat, checked event by event."""
    content, calls, reason, events, usage = "", [], None, 0, None
    for number, event in enumerate(stream):
        assert event.object == "chat.completion.chunk" and usage is None, event
        usage = event.usage
        if not event.choices:
            continue
        choice = event.choices[0]
        assert reason is None and (number > 0 or choice.delta.role == "assistant"), event
        content += choice.delta.content or ""
        events += bool(choice.delta.content)
        for call in choice.delta.tool_calls or []:
            assert call.index == len(calls) and call.id and call.type == "function", call
            calls.append((call.function.name, json.loads(call.function.arguments)))
        reason = choice.finish_reason
    return content, calls, reason, events, usage


def check_chats(server, tokenizer):
    client = client_of(server)
    create = lambda **options: client.chat.completions.create(**{"model": MODEL, "temperature": 0} | options)
    made = create(messages=chat_folder.HELLO)
    message, ids = made.choices[0].message, chat_folder.prompt_ids(tokenizer, chat_folder.HELLO)
    assert (message.role, message.content, message.tool_calls) == ("assistant", chat_folder.HELLO_ANSWER, None), message
    assert made.choices[0].finish_reason == "stop" and made.object == "chat.completion", made
    assert made.usage.prompt_tokens == len(ids), made
    content, calls, reason, events, usage = streamed_chat(create(messages=chat_folder.HELLO, stream=True,
                                                                 stream_options={"include_usage": True}))
    assert (content, calls, reason) == (chat_folder.HELLO_ANSWER, [], "stop") and events > 3, content
    assert usage.prompt_tokens == made.usage.prompt_tokens, usage
    assert usage.completion_tokens == made.usage.completion_tokens, usage
    # A developer is a system, and parts of a content are joined.
    variant = [{"role": "developer", "content": "You are kind."},
               {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]
    assert create(messages=variant).choices[0].message.content == chat_folder.HELLO_ANSWER
    for name in "max_tokens", "max_completion_tokens":
        cut = create(messages=chat_folder.HELLO, **{name: 3})
        assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 3, cut
    # Without a limit an answer takes the room that positions leave: the model does not read the last token.
    full = create(messages=[chat_folder.user("the dog")], n=2, seed=3, temperature=1, extra_body={"ignore_eos": True})
    assert full.usage.completion_tokens == 2 * (POSITIONS - full.usage.prompt_tokens + 1), full.usage
    assert [choice.finish_reason for choice in full.choices] == ["length"] * 2, full
    print("chats agree")


class Pet(pydantic.BaseModel):
    kind: typing.Literal["cat", "dog"]
    is_loud: bool


def check_schemas(server):
    client = client_of(server)
    create = lambda **options: client.chat.completions.create(model=MODEL, messages=chat_folder.JSON, **options).choices
    made = create(temperature=0, response_format={"type": "json_object"})[0]
    assert made.message.content == chat_folder.JSON_ANSWER and made.finish_reason == "stop", made
    assert create(temperature=0, response_format={"type": "text"})[0].message.content == chat_folder.JSON_ANSWER
    schema = {"type": "object", "required": ["name", "tags"], "additionalProperties": False, "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", 3]}, "maxItems": 3}}}
    for choice in create(temperature=1, n=8, seed=1,
                         response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}):
        assert choice.finish_reason == "stop", choice
        jsonschema.validate(json.loads(choice.message.content), schema)
    pet = client.chat.completions.parse(model=MODEL, messages=chat_folder.JSON, temperature=1, seed=2,
                                        response_format=Pet)
    assert isinstance(pet.choices[0].message.parsed, Pet), pet
    print("answers match their schemas")


def check_tools(server):
    create = lambda **options: client_of(server).chat.completions.create(
        **{"model": MODEL, "messages": chat_folder.RAIN, "tools": TOOLS, "temperature": 0} | options)
    wanted = (chat_folder.RAIN_CALL["name"], chat_folder.RAIN_CALL["arguments"])
    made = create().choices[0]
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in made.message.tool_calls]
    assert (calls, made.message.content, made.finish_reason) == ([wanted], None, "tool_calls"), made
    content, calls, reason, *_ = streamed_chat(create(stream=True))
    assert (content, calls, reason) == ("", [wanted], "tool_calls"), (content, calls, reason)
    # The answer to the call, whose arguments OpenAI writes as text.
    call = made.message.tool_calls[0].model_dump()
    messages = [*chat_folder.RAIN, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": "no rain"}]
    follow = create(messages=messages).choices[0]
    assert (follow.message.content, follow.finish_reason) == (chat_folder.RAINED_ANSWER, "stop"), follow
    # A choice that demands a call constrains the answer, so any draw is a call.
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    for choice, names in ("required", set(schemas)), ({"type": "function", "function": {"name": "alarm"}}, {"alarm"}):
        for seed in range(3):
            made = create(tool_choice=choice, temperature=1, seed=seed)
            call = made.choices[0].message.tool_calls[0].function
            assert call.name in names and made.choices[0].finish_reason == "tool_calls", made
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
            content, calls, reason, *_ = streamed_chat(create(tool_choice=choice, temperature=1, seed=seed,
                                                              stream=True))
            wanted_calls = [(call.name, json.loads(call.arguments))]
            assert (content, calls, reason) == ("", wanted_calls, "tool_calls"), (content, calls, made)
    assert create(tool_choice="none").choices[0].message.tool_calls is None
    print("calls of functions agree")


# --- other routes


def check_models_and_tokens(server, tokenizer):
    (model,) = client_of(server).models.list().data
    assert model.id == MODEL and model.max_model_len == POSITIONS, model
    assert client_of(server).models.retrieve(MODEL) == model
    status, _, made = server.ask("POST", "/tokenize", {"prompt": "the cat 7"})
    ids = tokenizer("the cat 7").input_ids
    assert (status, made) == (200, {"tokens": ids, "count": len(ids), "max_model_len": POSITIONS}), made
    assert server.ask("POST", "/detokenize", {"tokens": ids})[2] == {"prompt": "<s>the cat 7"}
    for messages, tools, _ in chat_folder.LEARNED:
        made = server.ask("POST", "/tokenize", {"messages": messages} | ({"tools": tools} if tools else {}))[2]
        assert made["tokens"] == chat_folder.prompt_ids(tokenizer, messages, tools), made
    assert server.ask("GET", "/health")[::2] == (200, {"status": "ok"})
    print("names and tokens agree")


def vectors(client, texts, **options):
    made = client.embeddings.create(model=MODEL, input=texts, **options)
    assert [one.index for one in made.data] == list(range(len(made.data))), made
    return np.array([one.embedding for one in made.data], np.float32), made.usage


def check_embeddings(server, folder, tokenizer, model):
    """Vectors are those of the mean of hidden states, in both formats, for texts and token ids."""
    texts = ["the cats play", "a", "dogs, playing the abc"]
    inputs = [tokenizer(text, return_tensors="pt", return_token_type_ids=False) for text in texts]
    hidden = [getattr(model, "model", model)(**one).last_hidden_state[0] for one in inputs]
    wanted = torch.stack([states.mean(0) for states in hidden]).detach().numpy()
    ids = [tokenizer(text).input_ids for text in texts]
    rounding = interop.rounding(model, torch.tensor([0] * max(map(len, ids))), 2**-24)
    limit = rounding * max(states.abs().max().item() for states in hidden)
    client = client_of(server)
    made, usage = vectors(client, texts)  # the package asks for base64
    assert usage.prompt_tokens == usage.total_tokens == sum(map(len, ids)), usage
    assert made.shape == wanted.shape and np.abs(made - wanted).max() <= limit, (np.abs(made - wanted).max(), limit)
    for other in vectors(client, texts, encoding_format="float")[0], vectors(client, ids)[0]:
        assert np.array_equal(made, other), np.abs(made - other).max()
    for alone in texts[0], ids[0]:
        assert np.abs(vectors(client, alone)[0] - wanted[:1]).max() <= limit
    raw = server.ask("POST", "/v1/embeddings", {"input": texts, "encoding_format": "base64"})[2]["data"][0]["embedding"]
    assert np.array_equal(np.frombuffer(base64.b64decode(raw), "<f4"), made[0]), raw
    (interop.temp_dir / "texts.txt").write_text("\n".join(texts) + "\n")
    printed = interop.colossal("embed", "--from", folder, "--input", interop.temp_dir / "texts.txt", "--pooling",
                               "mean")
    embedded = np.array([json.loads(line)["embedding"] for line in printed.splitlines()])
    assert np.abs(embedded - made).max() <= limit, np.abs(embedded - made).max()
    print("embeddings of", folder.name, "agree")


def check_streams(server):
    """The bytes of a stream, its headers, and a client that leaves."""
    body = {"model": MODEL, "prompt": "the", "stream": True, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    status, headers, text = server.ask("POST", "/v1/completions", body, X_Request_Id="my-id")
    assert status == 200 and headers["X-Request-Id"] == "my-id", headers
    assert headers["Content-Type"].startswith("text/event-stream"), headers
    assert headers["Cache-Control"] == "no-cache" and headers["X-Accel-Buffering"] == "no", headers
    events = text.split("\n\n")
    assert all(event.startswith("data: {") for event in events[:-2]) and events[-2:] == ["data: [DONE]", ""], text
    with client_of(server).chat.completions.create(model=MODEL, messages=chat_folder.HELLO, stream=True,
                                                   extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    server.wait_for_metrics(
        lambda found: found["colossal_requests_running"] == found["colossal_cache_blocks_used"] == 0)


def check_open_webui(server):
    """The requests of Open WebUI 0.6: models, a streamed chat with calls and fields of its own, and a title."""
    own = {"Authorization": "Bearer ", "X_OpenWebUI_User_Name": "Ann%20B", "X_OpenWebUI_User_Role": "admin",
           "X_OpenWebUI_Chat_Id": "c-1"}
    status, _, models = server.ask("GET", "/v1/models", None, **own)
    assert status == 200 and models["data"][0]["id"] == MODEL and models["object"] == "list", models
    fields = {"model": MODEL, "chat_id": "c-1", "session_id": "s-1", "id": "m-1", "features": {"web_search": False},
              "params": {}, "variables": {"{{USER_NAME}}": "Ann"}, "background_tasks": {"title_generation": True},
              "logit_bias": {}, "stop": [], "reasoning": {"effort": "low"},
              "metadata": {"task": "title_generation", "chat_id": "c-1"}}
    cached = [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]
    function = {"name": "weather", "arguments": json.dumps(chat_folder.RAIN_CALL["arguments"])}
    called = {"role": "assistant", "content": "",
              "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
    rained = [*chat_folder.RAIN, called, {"role": "tool", "tool_call_id": "call_1", "content": "no rain"}]
    for messages, tools, answer in [([chat_folder.HELLO[0], {"role": "user", "content": cached}], {},
                                     chat_folder.HELLO_ANSWER),
                                    (rained, {"tools": TOOLS}, chat_folder.RAINED_ANSWER)]:
        body = fields | tools | {"messages": messages, "temperature": 0, "stream": True,
                                 "stream_options": {"include_usage": True}}
        status, headers, text = server.ask("POST", "/v1/chat/completions", body, **own)
        assert status == 200 and headers["Content-Type"].startswith("text/event-stream"), (status, text)
        events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
        parts = [event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]
        assert "".join(parts) == answer, text
        assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] > 0, text
        assert text.endswith("data: [DONE]\n\n"), text
    body = fields | {"messages": chat_folder.HELLO, "stream": False, "max_completion_tokens": 1000, "temperature": 0}
    status, _, made = server.ask("POST", "/v1/chat/completions", body, **own)
    assert status == 200 and made["choices"][0]["message"]["content"] == chat_folder.HELLO_ANSWER, made
    print("requests of Open WebUI are answered")


def check_metrics(server, asked):
    found = server.wait_for_metrics(lambda found: found["colossal_requests_running"] == 0)
    for name in "requests_waiting", "cache_blocks_used":
        assert found[f"colossal_{name}"] == 0, found
    for name in ("cache_blocks", "prompt_tokens_total", "prefix_tokens_found_total", "generated_tokens_total",
                 "first_token_seconds_count", "between_tokens_seconds_count", "request_seconds_count"):
        assert found[f"colossal_{name}"] > 0, name
    for route in asked:
        assert found[f'colossal_requests_total{{route="{route}",status="200"}}'] > 0, found
    (line,) = [line for line in server.lines if " my-id " in line]
    assert re.search(r"request my-id /v1/completions key - status 200: \d+ prompt tokens \(0 found\), 3 answer tokens",
                     line), line
    assert chat_folder.HELLO_ANSWER not in server.log()


# --- errors


def check_bad_requests(server):
    client = client_of(server)
    complete = lambda **options: lambda: client.completions.create(**{"model": MODEL, "prompt": "a"} | options)
    chat = lambda **options: lambda: client.chat.completions.create(
        **{"model": MODEL, "messages": chat_folder.HELLO} | options)
    for call, param, part in [
        (complete(temperature="hot"), "temperature", 'temperature must be a number: got "hot"'),
        (complete(max_tokens=-1), "max_tokens", "-1"),
        (complete(n=17), "n", "17"), (complete(logprobs=21), "logprobs", "21"),
        (complete(stop=["a"] * 17), "stop", "16"),
        (complete(prompt=[[1], "a"]), "prompt", "a list"), (complete(prompt=[10000]), "prompt", "10000"),
        (complete(logit_bias={"x": 1}), "logit_bias", "token ids"), (complete(best_of=2), "best_of", "n"),
        (chat(messages=[]), "messages", "at least one"),
        (chat(messages=[{"role": "user", "content": 3}]), "messages[0].content", "a text"),
        (chat(top_logprobs=2), "top_logprobs", "logprobs"), (chat(tool_choice="required"), "tool_choice", "tools"),
        (chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}),
         "response_format", "#"),
        (chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"$dynamicRef": "#a"}}}),
         "response_format", "$dynamicRef")]:
        refused(openai.BadRequestError, call, part, param=param)
    refused(openai.BadRequestError, complete(suffix="b"), "suffix", param="suffix", code="unsupported_parameter")
    long = [chat_folder.user("7 " * 600)]
    for call, param in (complete(prompt=[1] * 513), "prompt"), (chat(messages=long), "messages"):
        refused(openai.BadRequestError, call, str(POSITIONS), "got", param=param, code="context_length_exceeded")
    json_type = {"Content_Type": "application/json"}
    for status, part, words, headers in [
        (400, "the body", ("POST", "/v1/completions", "{"), json_type),
        (400, "UTF-8", ("POST", "/v1/completions", b'{"a": "\xff"}'), json_type),
        (400, "object", ("POST", "/v1/completions", "[]"), json_type),
        (400, "64", ("POST", "/v1/completions", '{"prompt": ' + "[" * 100 + "]" * 100 + "}"), json_type),
        (415, "-H 'Content-Type: application/json'", ("POST", "/v1/completions", "prompt=a"),
         {"Content_Type": "text/plain"}),
        (404, "/v1/none", ("GET", "/v1/none"), {}), (405, "must be POST", ("GET", "/v1/completions"), {}),
        (403, "--allow-host", ("GET", "/health"), {"Host": "evil.example"})]:
        got, sent, body = server.ask(*words, **headers)
        assert got == status and part in body["error"]["message"], (status, got, body)
        assert status != 405 or sent["Allow"] == "POST"
    refused(openai.PermissionDeniedError,
            lambda: client_of(server, default_headers={"Host": "evil.example"}).models.list(), "evil.example")
    refused(openai.NotFoundError, lambda: client.files.list(), "/v1/files")
    print("bad requests are refused")


def check_full_queue(complete):
    """A burst of requests finds the only place of the queue taken."""
    def ask(number):
        try:
            complete(prompt=f"{number} " * 200, max_tokens=1)
        except openai.RateLimitError as error:
            assert "--max-waiting" in error.message and error.body["type"] == "rate_limit_error", error
            assert error.response.headers["Retry-After"] == "1", error.response.headers
            return True
        return False

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert any(any(pool.map(ask, range(10, 90))) for _ in range(10)), "every request found a place"


def check_limits_and_keys(folder):
    (interop.temp_dir / "keys.txt").write_text("# keys\n\n" + "\n".join(KEYS) + "\n")
    with Server("--from", folder, "--api-key-file", "keys.txt", "--name", "own-name", "--max-waiting", 1, "--max-body",
                "4KiB", "--max-tokens", 5, "--temperature", 0, "--allow-host", "llm.example",
                "--parallel.tensor=2") as server:
        first, second = (client_of(server, key) for key in KEYS)
        for key, path in ("none", "/completions"), (KEYS[0][:-1], "/completions"), ("none", "/no-route"):
            refused(openai.AuthenticationError, lambda: client_of(server, key).post(path, cast_to=object, body={}),
                    "Bearer", code="invalid_api_key")
        assert server.ask("GET", "/health")[0] == server.ask("GET", "/")[0] == 200
        assert server.ask("GET", "/metrics")[0] == 401
        assert [model.id for model in first.models.list()] == ["own-name"]
        complete = lambda client=first, **options: client.completions.create(
            **{"model": "own-name", "prompt": "7"} | options)
        refused(openai.NotFoundError, lambda: complete(model=MODEL), "own-name", param="model", code="model_not_found")
        refused(openai.NotFoundError, lambda: first.models.retrieve(MODEL), MODEL, code="model_not_found",
                param="model")
        refused(openai.BadRequestError, lambda: complete(n=2), "--max-waiting", param="prompt")
        check_full_queue(complete)
        refused(413, lambda: complete(prompt="7" * 5000), "4096 bytes")
        assert server.ask("GET", "/health", Host="llm.example")[0] == 200
        # The command line's options are defaults: a request that leaves them out is greedy, with five tokens.
        prompt = "only one key knows this: " + "7 " * 80
        made, again, other = (complete(client, prompt=prompt, extra_body={"ignore_eos": True})
                              for client in (first, first, second))
        assert made.usage.completion_tokens == 5, made
        assert made.choices[0].text == again.choices[0].text == other.choices[0].text, made
        found = [answer.usage.prompt_tokens_details.cached_tokens for answer in (made, again, other)]
        assert found[0] == found[2] == 0 and found[1] >= 64, found
    assert "key 1 status 200" in server.log() and not any(key in server.log() for key in KEYS), server.log()
    print("keys and limits are enforced")


def check_bert():
    folder, tokenizer, model = chat_folder.make_bert()
    with Server("--from", folder) as server:
        check_embeddings(server, folder, tokenizer, model)
        client = client_of(server)
        refused(openai.BadRequestError, lambda: client.completions.create(model=MODEL, prompt="a"), "embeddings")
        refused(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=chat_folder.HELLO))
        assert client.models.list().data[0].id == folder.name


def check_pictures():
    run, drawn = interop.temp_dir / "shapes", interop.temp_dir / "drawn"
    example = interop.source_dir / "examples/dit_shapes.toml"
    interop.colossal("train", example, f"--run.folder={run}", "--run.device=cpu", "--model.hidden=16", "--model.ffn=32",
                     "--model.layers=2", "--data.path=builtin-shapes:40", "--training.steps=3",
                     "--training.batch_size=8", "--training.evaluate_batches=0", "--training.sample_every=0",
                     "--optimizer.warmup_steps=0")
    interop.colossal("draw", "--from", run, "--class", "star", "--count", 2, "--seed", 7, "--steps", 3,
                     "--guidance", 2, "--to", drawn)
    with Server("--from", run, "--name", MODEL) as server:
        draw = client_of(server).images.generate
        options = {"seed": 7, "num_inference_steps": 3, "guidance_scale": 2}
        answer = draw(model=MODEL, prompt="star", n=2, size="16x16", response_format="b64_json", extra_body=options)
        for k, picture in enumerate(answer.data):
            assert base64.b64decode(picture.b64_json) == (drawn / f"000{k}-{7 + k}.png").read_bytes()
            assert picture.seed == 7 + k, picture
        assert abs(answer.created - time.time()) < 60, answer.created
        for fields, word, param in (({"n": 11}, "1 to 10", "n"), ({"size": "17x16"}, "16x16", None),
                                    ({"response_format": "url"}, "b64_json", "response_format"),
                                    ({"prompt": "stra"}, "star", None), ({"prompt": ""}, "what to draw", None)):
            refused(openai.BadRequestError, lambda fields=fields: draw(**{"model": MODEL, "prompt": "star"} | fields),
                    word, param=param)
        refused(openai.NotFoundError, lambda: draw(model="other", prompt="star"), param="model",
                code="model_not_found")
        refused(openai.BadRequestError, lambda: client_of(server).completions.create(model=MODEL, prompt="a"),
                "/v1/images/generations")
    print("pictures are those of draw")


def main():
    times = [time.monotonic()]
    folder, tokenizer, model = chat_folder.make_llama()
    with Server("--from", folder) as server:
        check_models_and_tokens(server, tokenizer)
        check_completions(server, tokenizer)
        check_clients(server, folder)
        known_prompt = check_prefixes(server)
        judge = Judge(tokenizer, model)
        check_logprobs(server, tokenizer, judge, known_prompt)
        check_scores(server, tokenizer, judge)
        check_chats(server, tokenizer)
        check_schemas(server)
        check_tools(server)
        check_embeddings(server, folder, tokenizer, model)
        check_streams(server)
        check_open_webui(server)
        check_bad_requests(server)
        check_metrics(server, ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/health"])
    times.append(time.monotonic())
    for flags in (["--parallel.tensor=2"], ["--replicas", 2], ["--draft-tokens", 4],
                  ["--draft", folder, "--parallel.tensor=2"],
                  ["--memory.disk", interop.temp_dir / "disk"]):
        with Server("--from", folder, *flags) as server:
            check_clients(server, folder)
    check_limits_and_keys(folder)
    check_bert()
    check_pictures()
    print(f"{times[1] - times[0]:.1f} s with the first server, {time.monotonic() - times[1]:.1f} s with others")


main()
