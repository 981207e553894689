"""Imports random StableLMs of transformers into examples/own_model, a model that the library does not have, and exports
them. Logits, loss and every gradient equal theirs, and transformers reads the exported folder. The example refuses by
name what it cannot compute."""

import json
import os
import subprocess

import interop

torch, transformers = interop.need("torch", "transformers")

LENGTH = 20
LAYOUTS = [[], ["--parallel.tensor=2"]]


def config(**more):
    return transformers.StableLmConfig(
        vocab_size=61, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}, **more)


def check(name, **options):
    model = transformers.StableLmForCausalLM(config(**options))
    folder = interop.save(name, model)
    model.double()
    ids = torch.randint(0, 61, (2, LENGTH + 1), generator=torch.Generator().manual_seed(4))
    logits = model(ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    # transformers rotates queries and keys by angles in fp32 for any dtype.
    written = interop.compare_model(name, model, folder, ids[:, :-1], ids[:, 1:], loss, logits, LAYOUTS,
                                    roundoff=2**-24)
    again, report = transformers.StableLmForCausalLM.from_pretrained(written, dtype=torch.float64,
                                                                     output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], (name, report)
    assert torch.equal(again(ids[:, :-1]).logits, logits), name


def refusal(folder, **changes):
    file = folder / "config.json"
    saved = file.read_text()
    file.write_text(json.dumps(json.loads(saved) | changes))
    done = subprocess.run([os.environ["COLOSSAL_MODEL_PROBE"], folder, interop.temp_dir / "batch.safetensors",
                           interop.temp_dir / "out"],
                          capture_output=True, text=True, timeout=300)
    file.write_text(saved)
    assert done.returncode == 1, changes
    return done.stderr


check("serial", use_parallel_residual=False)
check("parallel", use_parallel_residual=True, tie_word_embeddings=True)
folder = interop.temp_dir / "serial"
for changes, message in [
    ({"hidden_act": "gelu"}, "hidden_act of a StableLM must be silu: got gelu"),
    ({"qk_layernorm": True}, "qk_layernorm of a StableLM must be false"),
    ({"use_qkv_bias": True}, "use_qkv_bias of a StableLM must be false"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}},
     "rope_scaling of a StableLM must be of type default: got linear"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
     "rope_scaling of a StableLM must be of type default: got yarn"),
    ({"rope_parameters": {"partial_rotary_factor": 1.5}},
     "partial_rotary_factor of a StableLM must be in (0, 1]: got 1.5"),
]:
    assert message in refusal(folder, **changes), (changes, refusal(folder, **changes))
print("what it cannot compute is refused")
