"""colossal.Tokenizer and colossal.ChatTemplate: the same ids and texts as transformers."""

import pytest
import tiny_models
import transformers

from colossal.error import Error
from colossal.text import ChatTemplate, Tokenizer

TEXTS = ["", "Hello, world", "h\u00e9llo \u2603 \U0001f600", " a  b\n"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.add_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_ids_equal_those_of_transformers(folder):
    tokenizer = Tokenizer(folder)
    other = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    assert len(tokenizer) == 256
    assert tokenizer.encode_all(TEXTS) == [tokenizer.encode(text) for text in TEXTS] == other(TEXTS)["input_ids"]
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert b"".join(tokenizer.piece(id) for id in ids) == text.encode()
    assert tokenizer.spelling(tokenizer.encode(" ")[0]) == "\u0120"


def test_parts_of_characters_become_replacement_characters(folder):
    tokenizer = Tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("\u2603")[:2]) == "\ufffd"
    assert tokenizer.piece(tokenizer.encode("\u2603")[0]) == b"\xe2"


def test_special_ids_are_none_if_absent():
    tokenizer = Tokenizer("bytes")
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.mask_id) == (None, 256, None)


def test_wrong_names_and_ids_are_refused(folder, tmp_path):
    with pytest.raises(Error, match="nowhere"):
        Tokenizer(tmp_path / "nowhere")
    with pytest.raises(Error, match=r"\[tokenizer\].*got 256"):
        Tokenizer(folder).decode([256])


def test_chats_render_as_in_transformers(folder):
    template = ChatTemplate(folder)
    other = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    other.chat_template = tiny_models.CHAT
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "H\u00e9llo \U0001f600"}]
    for prompt in (False, True):
        wanted = other.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert template.render(messages, add_generation_prompt=prompt) == wanted
    assert template.names == ["default"]


def test_variables_and_errors_of_templates_pass_through(tmp_path):
    source = "{{ mood }}{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(source)
    template = ChatTemplate(tmp_path)
    messages = [{"role": "user", "content": "Hi"}]
    assert template.render(messages, variables={"mood": "calm"}) == "calm"
    with pytest.raises(Error, match="no tools"):
        template.render(messages, tools=[{"type": "function", "function": {"name": "f"}}])
    (tmp_path / "empty").mkdir()
    with pytest.raises(Error, match=r"\[chat template\]"):
        ChatTemplate(tmp_path / "empty")


def test_labels_are_the_ids_of_answers(folder):
    template, tokenizer = ChatTemplate(folder), Tokenizer(folder)
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hey"},
        {"role": "user", "content": "2+3?"},
        {"role": "assistant", "content": "5"},
    ]

    def counted(answers: str, messages=messages) -> str:
        ids, labels = template.encode(tokenizer, messages, answers)
        assert ids == tokenizer.encode(template.render(messages))
        assert all(label in (id, -100) for id, label in zip(ids, labels, strict=True))
        return tokenizer.decode([label for label in labels if label != -100])

    assert counted("all") == "Hey\n5\n"
    assert counted("last") == "5\n"
    assert counted("everything") == template.render(messages)
    assert counted("all", [messages[0], {**messages[1], "weight": 0}, *messages[2:]]) == "5\n"
    with pytest.raises(Error, match="answers must be all, last or everything: got first"):
        template.encode(tokenizer, messages, "first")
    with pytest.raises(Error, match=r"\[data\] a chat: message 1: roles are"):
        template.encode(tokenizer, [{"role": "bot", "content": "Hi"}])
    with pytest.raises(Error, match="a chat has no answer"):
        template.encode(tokenizer, messages[:1])
