"""colossal.Engine: answers equal those of transformers, and any number of readers, tasks and threads may use it."""

import asyncio
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import tiny_models
import torch
import transformers

from colossal.engine import Engine, Sampling
from colossal.error import Error

PROMPTS = [[5, 17, 200, 31], [9], list(range(40, 90)), [250, 250, 1]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.add_tokenizer(tiny_models.llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def engine(folder):
    with Engine(folder, kv_cache="8MiB") as engine:
        yield engine


@pytest.mark.parametrize("write", [tiny_models.llama, tiny_models.gpt2])
def test_greedy_ids_equal_those_of_transformers(write, tmp_path):
    folder = write(tmp_path)
    with Engine(folder, kv_cache="8MiB") as engine:
        assert engine.tokenizer is None
        answers = engine.generate(PROMPTS, max_tokens=24)
        assert [answer.ids for answer in answers] == [tiny_models.greedy(folder, prompt, 24) for prompt in PROMPTS]
        assert len({tuple(answer.ids) for answer in answers}) == len(PROMPTS)
        assert all(answer.text == "" for answer in answers)
        with pytest.raises(Error, match="a prompt must be a list of token ids"):
            engine.generate("a text")
        with pytest.raises(Error, match="stop strings need a tokenizer"):
            engine.generate(PROMPTS, stop="a")


def test_encoder_decoder_models_answer_sources(tmp_path):
    folder = tiny_models.t5(tmp_path)
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    prompts = [[5, 6, 9, 7], [44, 45, 46, 47, 48, 7]]
    with Engine(folder) as engine:
        answers = engine.generate(prompts, max_tokens=10)
    for prompt, answer in zip(prompts, answers):
        ids = torch.tensor([prompt])
        wanted = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False)
        assert answer.ids == wanted[0, 1:].tolist()  # without the start token


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_end_tokens_end_answers_and_are_left_out(with_tokenizer, folder, engine, tmp_path):
    ids = engine.generate([[60]], max_tokens=20)[0].ids
    shutil.copytree(folder, tmp_path / "model")
    if not with_tokenizer:
        (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": ids[9]}))
    with Engine(tmp_path / "model", kv_cache="8MiB") as other:
        answer = other.generate([[60]], max_tokens=20)[0]
    assert answer.ids == ids[: ids.index(ids[9])]
    assert answer.ended == "end"


def test_texts_are_the_decoded_ids(engine):
    answer = engine.generate("Hello", max_tokens=20)[0]
    assert answer.ids == engine.generate([engine.tokenizer.encode("Hello")], max_tokens=20)[0].ids
    assert answer.text == engine.tokenizer.decode(answer.ids)
    assert answer.text


def test_stop_strings_end_answers(engine):
    whole = engine.generate("Hello", max_tokens=40)[0].text
    stop = whole[10:13]
    answer = engine.generate("Hello", max_tokens=40, stop=stop)[0]
    assert answer.ended == "stop"
    assert answer.text == whole[: whole.index(stop)]


def test_sampling_follows_its_seed(engine):
    hot = Sampling(temperature=1.0, seed=3)
    pair = [answer.ids for answer in engine.generate(["a", "a"], hot, max_tokens=12)]
    assert pair[0] != pair[1]  # prompt i uses seed + i
    assert pair[1] == engine.generate("a", Sampling(temperature=1.0, seed=4), max_tokens=12)[0].ids
    with pytest.raises(Error, match=r"\[sampling\] top_k has no effect at temperature 0"):
        engine.generate("a", Sampling(top_k=3))
    with pytest.raises(Error, match="top_p"):
        engine.generate("a", Sampling(temperature=1.0, top_p=7.0))


def test_log_probabilities_are_sorted_and_of_the_answer(engine):
    answer = engine.generate("Hello", max_tokens=5, log_probabilities=3)[0]
    assert len(answer.log_probabilities) == len(answer.ids) == 5
    for id, at_position in zip(answer.ids, answer.log_probabilities):
        values = [value for _, value in at_position.best]
        assert at_position.best[0] == (id, at_position.own)  # greedy
        assert values == sorted(values, reverse=True) and len(values) == 3


def test_scores_of_given_answers_equal_those_of_transformers(folder, engine):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts, answers = PROMPTS + [PROMPTS[2]] * 2, [[3, 8, 1], [7], [60, 61], [9], [60], [70, 71]]
    scores = engine.log_probabilities(prompts, answers)
    assert [len(one) for one in scores] == [len(one) for one in answers]
    for prompt, answer, own in zip(prompts, answers, scores):
        with torch.no_grad():
            wanted = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert own == pytest.approx([row[id].item() for row, id in zip(wanted, answer)], abs=1e-4)
    assert scores[4] == scores[2][:1]
    assert engine.log_probabilities(prompts[5:], answers[5:]) == scores[5:]  # the same bits alone


def test_scores_of_texts_are_those_of_their_ids(engine):
    encode = engine.tokenizer.encode
    assert encode("1+1= 2")[: len(encode("1+1="))] == encode("1+1=")
    wanted = engine.log_probabilities([encode("1+1=")], [encode("1+1= 2")[len(encode("1+1=")) :]])
    assert engine.log_probabilities("1+1= ", "2") == engine.log_probabilities(["1+1="], [" 2"]) == wanted
    greedy = engine.generate(["Hello"], max_tokens=4, log_probabilities=0)[0]
    ids = engine.log_probabilities([encode("Hello")], [greedy.ids])[0]
    assert ids == [position.own for position in greedy.log_probabilities]
    assert engine.log_probabilities([], []) == []


def test_answers_that_cannot_be_scored_are_refused(folder, engine):
    with pytest.raises(ValueError, match="equally many: got 2 and 1"):
        engine.log_probabilities(["a", "b"], ["c"])
    for prompt, answer in (("a", [1]), ([1], "a"), (1, [1])):
        with pytest.raises(TypeError, match="both be texts or lists of ids"):
            engine.log_probabilities([prompt], [answer])
    with pytest.raises(Error, match="at least one token"):
        engine.log_probabilities(["a"], [""])
    with pytest.raises(Error, match="vocabulary"):
        engine.log_probabilities([[1], [1]], [[1], [tiny_models.VOCABULARY]])
    with pytest.raises(Error, match="positions"):
        engine.log_probabilities([[1] * engine.max_length], [[1, 2]])
    assert len(engine.log_probabilities([[1] * engine.max_length], [[1]])[0]) == 1
    with Engine(folder, kv_cache="8MiB") as closed:
        pass
    with pytest.raises(Error, match="must be open"):
        closed.log_probabilities([[1]], [[2]])


def test_answers_follow_a_schema(engine):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    answer = engine.generate("x", max_tokens=60, json_schema=schema)[0]
    assert answer.text.replace(" ", "").startswith('{"a":')


def test_chats_use_the_template(engine):
    messages = [{"role": "user", "content": "Hi"}]
    prompt = engine.chat_prompt(messages)
    assert engine.tokenizer.decode(prompt) == "<user>Hi\n<assistant>"
    assert engine.chat(messages, max_tokens=9).ids == engine.generate([prompt], max_tokens=9)[0].ids


def test_pieces_join_to_the_answer(engine):
    request = engine.submit("Hello", max_tokens=30)
    assert "".join(request) == request.result().text == engine.generate("Hello", max_tokens=30)[0].text
    assert "".join(request) == request.result().text  # a second reader


def test_cancelled_requests_keep_what_arrived(engine):
    request = engine.submit("Hello", max_tokens=200)
    pieces = iter(request)
    first = next(pieces)
    request.cancel()
    request.cancel()
    answer = request.result()
    assert answer.ended == "cancelled"
    assert answer.text.startswith(first) and answer.text == first + "".join(pieces)


def test_unread_requests_end_and_dropped_ones_are_cancelled(engine):
    unread = engine.submit("Hello", max_tokens=30)
    for _ in range(50):
        engine.submit("other", max_tokens=200)  # no reference: cancelled
    gc.collect()
    assert unread.result(timeout=60).ended == "length"
    assert engine.generate("Hello", max_tokens=30)[0].text == unread.result().text


def test_errors_of_a_request_spare_the_others(engine):
    good = engine.submit("Hello", max_tokens=10)
    bad = engine.submit([tiny_models.VOCABULARY + 5])
    with pytest.raises(Error) as caught:
        bad.result()
    assert caught.value.component == "engine"
    with pytest.raises(Error):  # again for each reader
        list(bad)
    assert good.result().ended == "length"
    with pytest.raises(Error, match="prompt"):
        engine.generate([[]])
    with pytest.raises(TypeError, match="list of prompts"):
        engine.generate([1, 2])


def test_results_time_out(engine):
    request = engine.submit("Hello", max_tokens=230)
    with pytest.raises(TimeoutError):
        request.result(timeout=0)
    assert request.result(timeout=60).ended in ("length", "end")


def test_32_tasks_of_asyncio_share_the_engine(engine):
    prompts = [[i + 30, 2 * i + 8] for i in range(32)]
    wanted = [answer.ids for answer in engine.generate(prompts, max_tokens=20)]

    async def streamed(prompt):
        request = engine.submit(prompt, max_tokens=20)
        text = "".join([piece async for piece in request])
        answer = await request
        assert answer.text == text
        return answer.ids

    async def every():
        return await asyncio.gather(*(streamed(prompt) for prompt in prompts))

    before = len(os.listdir("/proc/self/fd"))
    assert asyncio.run(every()) == wanted
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_cancelled_tasks_cancel_their_requests(engine):
    async def main():
        request = engine.submit("Hello", max_tokens=240)
        task = asyncio.ensure_future(_wait_for(request))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await request

    assert asyncio.run(main()).ended == "cancelled"


async def _wait_for(request):
    return await request


def test_threads_share_the_engine(engine):
    wanted = engine.generate("Hello", max_tokens=20)[0].ids
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(engine.generate("Hello", max_tokens=20)[0].ids)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 8


def test_ctrl_c_ends_generate(folder):
    with Engine(folder, kv_cache="8MiB") as engine:
        prompts = [[i % 250] for i in range(2000)]
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            engine.generate(prompts, max_tokens=240)
        assert engine.generate([[9]], max_tokens=3)[0].ended == "length"


def test_closed_engines_refuse_requests(folder):
    engine = Engine(folder, kv_cache="8MiB")
    running = engine.submit("Hello", max_tokens=240)
    engine.close()
    engine.close()
    assert running.result(timeout=10).ended == "cancelled"
    with pytest.raises(Error, match="must be open"):
        engine.generate("Hello")


def test_several_threads_may_close_an_engine(folder):
    for _ in range(3):
        engine, errors = Engine(folder, kv_cache="8MiB"), []
        running = engine.submit("Hello", max_tokens=240)

        def close():
            try:
                engine.close()
                with pytest.raises(Error, match="must be open"):
                    engine.submit("Hello")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=close) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors and not any(thread.is_alive() for thread in threads)
        assert running.result(timeout=10).ended == "cancelled"


def test_requests_choose_adapters(tmp_path, folder):
    paths = {name: tiny_models.adapter(tmp_path / name, rank) for name, rank in (("poet", 2), ("coder", 5))}
    with Engine(folder, kv_cache="8MiB", precision="fp64", adapters=paths) as engine:
        requests = [engine.submit(PROMPTS[0], max_tokens=8, adapter=name) for name in ("", "poet", "coder")]
        answers = [request.result(timeout=30).ids for request in requests]
        scores = engine.log_probabilities([PROMPTS[2]], [[5, 6]], adapter="poet")
        with pytest.raises(Error, match="did you mean `poet`"):
            engine.generate(PROMPTS, adapter="poem")
    with Engine(folder, kv_cache="8MiB", precision="fp64") as base:
        assert base.generate([PROMPTS[0]], max_tokens=8)[0].ids == answers[0]
    for name, answer in zip(paths, answers[1:]):
        with Engine(folder, kv_cache="8MiB", precision="fp64", adapter=paths[name]) as merged:
            assert merged.generate([PROMPTS[0]], max_tokens=8)[0].ids == answer != answers[0]
            if name == "poet":
                assert merged.log_probabilities([PROMPTS[2]], [[5, 6]])[0] == pytest.approx(scores[0], abs=1e-9)
    with pytest.raises(Error, match="both adapter and adapters"):
        Engine(folder, adapter=paths["poet"], adapters=paths)


def test_chats_use_the_templates_of_adapters(tmp_path, folder):
    paths = {name: tiny_models.adapter(tmp_path / name, rank) for name, rank in (("poet", 2), ("coder", 5))}
    (paths["poet"] / "chat_template.jinja").write_text("[{{ messages[0].content }}]")
    messages = [{"role": "user", "content": "Hi"}]
    with Engine(folder, kv_cache="8MiB", precision="fp64", adapters=paths) as engine:
        texts = {}
        for name in ("", "poet", "coder"):
            prompt = engine.chat_prompt(messages, adapter=name)
            texts[name] = engine.tokenizer.decode(prompt)
            answer = engine.chat(messages, max_tokens=9, adapter=name)
            assert answer.ids == engine.generate([prompt], max_tokens=9, adapter=name)[0].ids
    assert texts == {"": "<user>Hi\n<assistant>", "poet": "[Hi]", "coder": "<user>Hi\n<assistant>"}
    with Engine(folder, kv_cache="8MiB", adapter=paths["poet"]) as merged:
        assert merged.tokenizer.decode(merged.chat_prompt(messages)) == "[Hi]"


def test_chats_need_a_template(tmp_path, folder):
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / "tokenizer_config.json").unlink()
    with Engine(bare, kv_cache="8MiB") as engine, pytest.raises(Error, match="has no chat template"):
        engine.chat_prompt([{"role": "user", "content": "Hi"}])


def test_bad_options_are_refused_before_the_model_is_read(tmp_path, folder):
    with pytest.raises(Error, match="there is no file or folder"):
        Engine(tmp_path / "none")
    with pytest.raises(Error, match="--precision"):
        Engine(folder, precision="fp7")
    with pytest.raises(Error, match="--kv-cache"):
        Engine(folder, kv_cache="many")


def test_many_calls_keep_memory(engine):
    def resident():
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def calls(count):
        for i in range(count):
            engine.generate([[i % 250, 3], "Hello"], max_tokens=3, stop="zzz", log_probabilities=1)

    calls(200)
    gc.collect()
    before = resident()
    calls(1000)
    gc.collect()
    assert resident() - before < 4 << 20


def test_programs_end_with_a_running_engine(folder):
    program = (
        "import sys; from colossal.engine import Engine\n"
        f"engine = Engine({str(folder)!r}, kv_cache='8MiB'); request = engine.submit([5], max_tokens=250)\n"
    )
    began = time.monotonic()
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert time.monotonic() - began < 50
