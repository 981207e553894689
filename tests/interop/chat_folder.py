"""Tiny models for servers: a LLaMA with a tokenizer and a chat template, which has learned the answers of a few chats
by heart, and a BERT."""

import interop

torch, tokenizers, transformers = interop.need("torch", "tokenizers", "transformers")

POSITIONS = 512
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """{% if tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.tool_calls %}{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>\
{% endfor %}{% else %}{{ message.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

WEATHER = {"type": "function", "function": {"name": "weather", "description": "the weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
                                     "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"], "additionalProperties": False}}}
ALARM = {"type": "function", "function": {"name": "alarm", "parameters": {
    "type": "object", "properties": {"loud": {"type": "boolean"}}, "required": ["loud"],
    "additionalProperties": False}}}
TOOLS = [WEATHER, ALARM]


def user(text):
    return {"role": "user", "content": text}


HELLO = [{"role": "system", "content": "You are kind."}, user("Hello")]
HELLO_ANSWER = "Hello! How are you today?"
JSON = [user("Give me JSON")]
JSON_ANSWER = '{"answer": [1, 2, true]}'
RAIN = [user("Will it rain in Rome?")]
RAIN_ANSWER = '<tool_call>{"name": "weather", "arguments": {"city": "Rome", "days": 2}}</tool_call>'
RAIN_CALL = {"name": "weather", "arguments": {"city": "Rome", "days": 2}}
RAINED = [*RAIN, {"role": "assistant", "content": "",
                  "tool_calls": [{"type": "function", "id": "call_1", "function": RAIN_CALL}]},
          {"role": "tool", "tool_call_id": "call_1", "content": "no rain"}]
RAINED_ANSWER = "It stays dry."
LEARNED = [(HELLO, None, HELLO_ANSWER), (JSON, None, JSON_ANSWER), (RAIN, TOOLS, RAIN_ANSWER),
           (RAINED, TOOLS, RAINED_ANSWER)]


def make_tokenizer():
    """A BPE over bytes that has only printable ASCII, so that every token is text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(False)
    made.decoder = tokenizers.decoders.ByteLevel()
    corpus = [TEMPLATE, repr(LEARNED),
              "the cat and the dog saw the bird on the tree, and then the rain came down on all of them"] * 2
    made.train_from_iterator(corpus, tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=[*map(chr, range(33, 127)), "\u0120", "\u010a"]))
    made.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 0)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def prompt_ids(tokenizer, messages, tools=None):
    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False).input_ids


def learn(model, tokenizer):
    """Trains until the most probable token is the right one in every answer."""
    rows = []
    for messages, tools, answer in LEARNED:
        prompt = prompt_ids(tokenizer, messages, tools)
        rest = tokenizer(answer + "<|im_end|>", add_special_tokens=False).input_ids
        rows.append((prompt + rest, [-100] * len(prompt) + rest))
    length = max(len(ids) for ids, _ in rows)
    assert length < POSITIONS - 64, length
    ids = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [-100] * (length - len(labels)) for _, labels in rows])[:, 1:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(600):
        logits = model(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if loss < 0.02 and (logits.argmax(-1) == labels)[labels >= 0].all():
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError(f"the chats are not learned: loss {loss.item()}")


def make_llama():
    """Returns the folder, its tokenizer and the model in fp64."""
    tokenizer = make_tokenizer()
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=POSITIONS, tie_word_embeddings=False, bos_token_id=0,
        eos_token_id=3))
    learn(model, tokenizer)
    folder = interop.temp_dir / "tiny-chat"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, tokenizer, model.double().eval()


def make_bert():
    """Returns the folder, its tokenizer and the model in fp64."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "##s", "play", "##ing", "a", "b", "##c"]
    model = transformers.BertModel(transformers.BertConfig(
        vocab_size=len(words), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=88,
        max_position_embeddings=32))
    folder = interop.save("tiny-bert", model)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    return folder, tokenizer, model.double().eval()
