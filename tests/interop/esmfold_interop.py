"""Compares random ESMFolds of transformers with ours at odd shapes: in fp32 as they are, in fp64 with their constants
and rotary positions lifted, and folders that we write back."""

import os
import subprocess

import interop

torch, transformers = interop.need("torch", "transformers")
import transformers.models.esm.modeling_esm as language  # noqa: E402  (after need())
import transformers.models.esm.openfold_utils.residue_constants as constants  # noqa: E402
import transformers.models.esm.openfold_utils.rigid_utils as rigid  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()

LETTERS = "ARNDCQEGHILKMFPSTWYVX"
CHAINS = ["MKTAYIAKQRQ", "WGPXVLC"]
JUMP = 4  # from this residue on the first chain is another one of a complex


class Lifted:
    """torch with fp64 in place of fp32."""

    def __getattr__(self, name):
        return torch.float64 if name == "float32" else getattr(torch, name)


def rotary(self, x, position_ids, layer_type=None):
    size = self.config.hidden_size // self.config.num_attention_heads
    frequencies = self.config.rope_theta**(-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.cat([position_ids[..., None].double() * frequencies] * 2, -1)
    return angles.cos(), angles.sin()


def rotated(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(x * cos + language.rotate_half(x) * sin for x in (q, k))


def lift():
    """Lets transformers compute in fp64 what it computes in fp32 in every model."""
    rigid.torch = Lifted()
    source = open(constants.__file__).read().replace("np.float32", "np.float64")
    exec(compile(source, constants.__file__, "exec"), constants.__dict__)
    language.EsmRotaryEmbedding.forward = rotary
    language.apply_rotary_pos_emb = rotated


def config(structure, **more):
    trunk = dict(num_blocks=2, sequence_state_dim=20, pairwise_state_dim=14, sequence_head_width=5,
                 pairwise_head_width=7, position_bins=5, max_recycles=3,
                 structure_module=dict(sequence_dim=11, pairwise_dim=9, ipa_dim=5, resnet_dim=7, num_heads_ipa=3,
                                       num_qk_points=3, num_v_points=2, num_blocks=3, **structure))
    return transformers.EsmConfig(
        vocab_size=33, mask_token_id=32, pad_token_id=1, hidden_size=24, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=34, layer_norm_eps=1e-5, position_embedding_type="rotary", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, is_folding_model=True,
        esmfold_config=dict(fp16_esm=False, lddt_head_hid_dim=13, trunk=trunk) | more, token_dropout=not more)


def batch():
    longest = max(map(len, CHAINS))
    types = torch.tensor([[LETTERS.index(c) for c in chain.ljust(longest, "A")] for chain in CHAINS])
    mask = torch.tensor([[1] * len(chain) + [0] * (longest - len(chain)) for chain in CHAINS])
    index = torch.arange(longest).repeat(len(CHAINS), 1)
    index[0, JUMP:] += 512
    return types, mask, index


def ours(folder, dtype, passes):
    types, mask, index = batch()
    given, out = interop.temp_dir / "batch.safetensors", interop.temp_dir / "results.safetensors"
    save_file({"aatype": types, "seq_mask": mask.float(), "residue_index": index}, given)
    done = subprocess.run([os.environ["COLOSSAL_FOLDING_PROBE"], folder, given, out, dtype, str(passes),
                           f"{folder}-again"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return load_file(out)


def theirs(model, passes):
    types, mask, index = batch()
    with torch.no_grad():
        out = model(types, attention_mask=mask, position_ids=index, num_recycles=passes - 1)
    found = {name: out[name] for name in ("s_s", "s_z", "distogram_logits", "ptm_logits")}
    found |= {name: out[name].transpose(0, 1) for name in ("frames", "unnormalized_angles")}
    return found | {"positions": out["positions"][-1], "lddt_head": out["lddt_head"][-1]}


def without_padding(x, name):
    """Returns the values of residues, row by row."""
    rows = []
    for row, chain in zip(x, CHAINS):
        n = len(chain)
        cut = {"frames": (slice(None), slice(n)), "unnormalized_angles": (slice(None), slice(n)),
               "s_z": (slice(n), slice(n)), "distogram_logits": (slice(n), slice(n)),
               "ptm_logits": (slice(n), slice(n))}
        rows.append(row[cut.get(name, slice(n))].double().flatten())
    return torch.cat(rows)


def check(name, folder, model, dtype, limit, passes):
    got = ours(folder, dtype, passes)
    for part, wanted in theirs(model, passes).items():
        a, b = without_padding(got[part], part), without_padding(wanted, part)
        off = (a - b).abs().max().item() / b.abs().max().item()
        assert a.shape == b.shape and off <= limit, (name, part, off, limit)
        print(name, part, dtype, "agrees within", off)


def check_export(folder, model):
    again, report = transformers.EsmForProteinFolding.from_pretrained(f"{folder}-again", output_loading_info=True)
    lacking = [name for name in report["missing_keys"] if "inv_freq" not in name and name != "af2_to_esm"]
    assert not lacking and not report["unexpected_keys"], report
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def stored_halves(folder):
    """Stores ESM-2 of a folder in fp16."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name: x.half() if name.startswith("esm.") else x for name, x in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})


def check_halves(folder):
    again, wanted = (load_file(f"{path}/model.safetensors") for path in (f"{folder}-again", folder))
    assert any(x.dtype == torch.float16 for x in again.values())
    names = {name: name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
             for name in wanted if "inv_freq" not in name and name != "af2_to_esm"}
    assert sorted(names.values()) == sorted(again)
    for name, ours_ in names.items():
        assert again[ours_].dtype == wanted[name].dtype and torch.equal(again[ours_], wanted[name]), name


shapes = {"one": config({}), "two": config(dict(num_transition_layers=2, num_resnet_blocks=1), embed_aa=False),
          "three": config(dict(trans_scale_factor=20))}
models = {}
for name, wanted in shapes.items():
    model = transformers.EsmForProteinFolding(wanted)
    models[name] = interop.save(name, model), model
    check(name, *models[name], "float", 1e-5, 1)
    check_export(*models[name])
halves, model = models["one"]
stored_halves(halves)
ours(halves, "float", 1)
check_halves(halves)
transformers.EsmForProteinFolding.from_pretrained(f"{halves}-again")
model.save_pretrained(halves)  # in fp32 again
lift()
for name, (folder, _) in models.items():  # read anew, because a pass in fp32 has left constants in the model
    model = transformers.EsmForProteinFolding.from_pretrained(folder).eval().double()
    check(name, folder, model, "double", 1e-9, 3)
