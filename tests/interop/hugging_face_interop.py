"""Imports and exports random transformers models: loss and gradient norm of our first step, greedy tokens or held-out
accuracy, and the model that a run exports agree."""

import json
import random

import interop

torch, transformers = interop.need("torch", "transformers")

LENGTH = 48
VOCABULARY = 257  # vocabulary of the byte tokenizer
IMAGES = 24


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=256, eos_token_id=256))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
        bos_token_id=256, eos_token_id=256,
        rope_scaling={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
                      "high_freq_factor": 4.0, "original_max_position_embeddings": 32}))


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        image_size=32, patch_size=8, num_channels=3, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=88, num_labels=10))


def deit():
    return transformers.DeiTForImageClassification(transformers.DeiTConfig(
        image_size=32, patch_size=8, num_channels=3, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=88, num_labels=10, hidden_act="relu", qkv_bias=False))


def distilled_deit():
    return transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(
        image_size=32, patch_size=8, num_channels=3, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=88, num_labels=10))


def gradient_norm(model, loss):
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()


def first_step(name, folder, tensor, data, batch_size, evaluate_batches):
    """Returns the run folder and the metrics of one step from `folder`, with a learning rate of 0."""
    run = interop.temp_dir / f"{name}-run-{tensor}"
    config = interop.temp_dir / "config.toml"
    config.write_text(f"""
        [run]
        folder = "{run}"
        [model]
        from = "{folder}"
        [data]
        {data}
        [parallel]
        tensor = {tensor}
        [optimizer]
        learning_rate = 0
        warmup_steps = 0
        [training]
        steps = 1
        batch_size = {batch_size}
        evaluate_batches = {evaluate_batches}
        sample_tokens = 0
        """)
    interop.colossal("train", config)
    return run, json.loads((run / "metrics.jsonl").read_text())


def compare(name, tensor, ours, loss, norm):
    assert abs(ours["loss"] - loss.item()) < 1e-4, (name, tensor, ours["loss"], loss.item())
    assert abs(ours["grad_norm"] - norm) < 1e-4 * norm, (name, tensor, ours["grad_norm"], norm)


def check_byte_tokenizer(folder):
    """Checks that transformers reads the tokenizer of a model of bytes with the same ids, and ends its texts at the
    same token."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (len(tokenizer), tokenizer.eos_token_id, tokenizer.bos_token_id) == (VOCABULARY, 256, None), tokenizer
    for text in ("TEST(a, b)  {\n\n\t}", "\u00e4\u65e5\U0001f642\x00\x7f", " a", ""):
        assert tokenizer.encode(text) == list(text.encode()), (text, tokenizer.encode(text))
        assert tokenizer.decode(tokenizer.encode(text)) == text, text
    assert all(tokenizer.backend_tokenizer.decode([byte]) == chr(byte) for byte in range(32, 127))
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == 256


def check_text(name, model):
    folder = interop.save(name, model)
    generator = random.Random(2)
    text = bytes(generator.randrange(97, 123) for _ in range(LENGTH + 1))
    (interop.temp_dir / "text.txt").write_bytes(text)
    ids = torch.tensor([list(text)])
    loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:])
    norm = gradient_norm(model, loss)
    data = f"path = '{interop.temp_dir}/text.txt'\nsequence = {LENGTH}\nheld_out = 0"
    for tensor in 1, 2:
        run, ours = first_step(name, folder, tensor, data, batch_size=1, evaluate_batches=0)
        compare(name, tensor, ours, loss, norm)
    interop.compare_export(name, run, model, input_ids=ids)
    check_byte_tokenizer(f"{run}-export")

    prompt = "abcdefgh"
    wanted = model.generate(torch.tensor([list(prompt.encode())]), max_new_tokens=24,
                            do_sample=False)[0, len(prompt):].tolist()
    if 256 in wanted:
        wanted = wanted[:wanted.index(256)]
    for tensor in 1, 2:
        printed = interop.colossal("generate", "--from", f"{run}-export", "--prompt", prompt, "--max-tokens", 24,
                                   "--ids", "--tokenizer", "bytes", f"--parallel.tensor={tensor}")
        assert [int(word) for word in printed.split()] == wanted, (name, tensor, printed.split(), wanted)
    print(name, "agrees: loss", loss.item(), "gradient norm", norm)


def write_images(path, seed):
    """Returns random images in CIFAR-10's format: the records of the file, and the input of the model."""
    torch.manual_seed(seed)
    pixels = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (IMAGES,), dtype=torch.uint8)
    path.write_bytes(torch.cat([labels[:, None], pixels.flatten(1)], 1).numpy().tobytes())
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    return (pixels / 255.0 - mean[:, None, None]) / deviation[:, None, None], labels.long()


def check_images(name, model):
    folder = interop.save(name, model)
    cifar = interop.temp_dir / "cifar"
    cifar.mkdir(exist_ok=True)
    images, labels = write_images(cifar / "data_batch_1.bin", 3)
    held_out, wanted = write_images(cifar / "test_batch.bin", 4)
    loss = torch.nn.functional.cross_entropy(model(images).logits, labels)
    norm = gradient_norm(model, loss)
    logits = model(held_out).logits
    held_out_loss = torch.nn.functional.cross_entropy(logits, wanted).item()
    accuracy = (logits.argmax(-1) == wanted).double().mean().item()
    for tensor in 1, 2:
        run, ours = first_step(name, folder, tensor, f"path = '{cifar}'\naugment = false", batch_size=IMAGES,
                               evaluate_batches=1)
        compare(name, tensor, ours, loss, norm)
        assert abs(ours["eval_loss"] - held_out_loss) < 1e-4, (name, tensor, ours["eval_loss"], held_out_loss)
        assert abs(ours["accuracy"] - accuracy) < 1e-9, (name, tensor, ours["accuracy"], accuracy)
    interop.compare_export(name, run, model, pixel_values=images)
    print(name, "agrees: loss", loss.item(), "gradient norm", norm, "held-out loss", held_out_loss, "accuracy",
          accuracy)


check_text("gpt2", gpt2())
check_text("llama", llama())
check_images("vit", vit())
check_images("deit", deit())
check_images("distilled-deit", distilled_deit())
