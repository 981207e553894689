"""Random transformers models, in and out: loss and gradient norm of our first step, greedy tokens and the exported weights agree."""

import json
import random

import interop

torch, transformers = interop.need("torch", "transformers")

LENGTH = 48
VOCABULARY = 257  # that of the byte tokenizer


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=256, eos_token_id=256))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=256, eos_token_id=256,
        rope_scaling={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 32}))


def check(name, model):
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too, so that each of them matters
            parameter.add_(torch.randn_like(parameter) * 0.05)
    folder = interop.temp_dir / name
    model.save_pretrained(folder)

    generator = random.Random(2)
    text = bytes(generator.randrange(97, 123) for _ in range(LENGTH + 1))
    (interop.temp_dir / "text.txt").write_bytes(text)
    ids = torch.tensor([list(text)])
    model.eval()
    loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:])
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()

    for tensor in 1, 2:
        run = interop.temp_dir / f"{name}-run-{tensor}"
        config = interop.temp_dir / "config.toml"
        config.write_text(f"""
            [run]
            folder = "{run}"
            [model]
            from = "{folder}"
            [data]
            path = "{interop.temp_dir}/text.txt"
            sequence = {LENGTH}
            held_out = 0
            [parallel]
            tensor = {tensor}
            [optimizer]
            learning_rate = 0
            warmup_steps = 0
            [training]
            steps = 1
            batch_size = 1
            evaluate_batches = 0
            sample_tokens = 0
            """)
        interop.colossal("train", config)
        ours = json.loads((run / "metrics.jsonl").read_text())
        assert abs(ours["loss"] - loss.item()) < 1e-4, (name, tensor, ours["loss"], loss.item())
        assert abs(ours["grad_norm"] - norm) < 1e-4 * norm, (name, tensor, ours["grad_norm"], norm)

        interop.colossal("export", "--from", run, "--to", f"{run}-export")
        again = type(model).from_pretrained(f"{run}-export")
        for (key, a), (other, b) in zip(model.state_dict().items(), again.state_dict().items()):
            assert key == other and torch.equal(a, b), (name, key)
        difference = (again(ids).logits - model(ids).logits).abs().max().item()
        assert difference < 1e-4, (name, difference)

        prompt = "abcdefgh"
        printed = interop.colossal("generate", "--from", f"{run}-export", "--prompt", prompt, "--max-tokens", 24, "--ids",
                                   "--tokenizer", "bytes", f"--parallel.tensor={tensor}")
        wanted = model.generate(torch.tensor([list(prompt.encode())]), max_new_tokens=24, do_sample=False)[0, len(prompt):].tolist()
        if 256 in wanted:
            wanted = wanted[:wanted.index(256)]
        assert [int(word) for word in printed.split()] == wanted, (name, tensor, printed.split(), wanted)
    print(name, "agrees: loss", loss.item(), "gradient norm", norm)


check("gpt2", gpt2())
check("llama", llama())
