"""Compares `colossal fold` with transformers: random ESMFold folders of odd shapes fold a chain with an unknown residue
and a complex to its atoms, masks, pLDDT and predicted errors, on one rank and on two stages of a pipeline."""

import json

import interop

torch, transformers, safetensors = interop.need("torch", "transformers", "safetensors.torch")

from transformers.models.esm.openfold_utils import atom14_to_atom37, residue_constants  # noqa: E402

LINKER, OFFSET = 25, 512
CHAINS = {"one": ["MKTAYIAKQRX"], "two": ["MKTAYI", "GARPK", "LW"]}
LETTERS = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]


def model(hidden, heads, single, pair, passes):
    structure = {"sequence_dim": 10, "pairwise_dim": 8, "ipa_dim": 4, "resnet_dim": 6, "num_heads_ipa": 2,
                 "num_qk_points": 2, "num_v_points": 3, "num_blocks": 2, "dropout_rate": 0.0}
    trunk = {"num_blocks": 2, "sequence_state_dim": single, "pairwise_state_dim": pair, "sequence_head_width": 4,
             "pairwise_head_width": pair // 4, "dropout": 0.0, "max_recycles": passes, "structure_module": structure}
    made = transformers.EsmForProteinFolding(transformers.EsmConfig(
        vocab_size=len(LETTERS), hidden_size=hidden, num_hidden_layers=2, num_attention_heads=heads,
        intermediate_size=2 * hidden, position_embedding_type="rotary", token_dropout=True, mask_token_id=32,
        pad_token_id=1, is_folding_model=True, vocab_list=LETTERS,
        esmfold_config={"trunk": trunk, "lddt_head_hid_dim": 12, "fp16_esm": False, "embed_aa": True}))
    torch.manual_seed(hidden)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return made.eval().float()


def folded(peer, chains):
    """Returns positions, mask, pLDDT and errors of the residues of the chains, without those between them."""
    letters = ("G" * LINKER).join(chains)
    types = torch.tensor([[residue_constants.restype_order_with_x.get(letter, 20) for letter in letters]])
    numbers, kept, start = torch.arange(len(letters)), [], 0
    for index, chain in enumerate(chains):
        numbers[start : start + len(chain) + LINKER] += OFFSET * index
        kept += range(start, start + len(chain))
        start += len(chain) + LINKER
    with torch.no_grad():
        result = peer(types, attention_mask=torch.ones_like(types), position_ids=numbers[None])
    mask = result["atom37_atom_exists"][0][kept] > 0
    positions = atom14_to_atom37(result["positions"][-1], result)[0][kept]
    return (positions * mask[..., None], mask, 100 * result["plddt"][0][kept] * mask,
            result["predicted_aligned_error"][0][kept][:, kept])


def check(name, peer, *flags):
    interop.temp_dir.joinpath("x.fasta").write_text(
        "".join(f">{key}\n{':'.join(chains)}\n" for key, chains in CHAINS.items()))
    out = interop.temp_dir / f"{name}-out"
    lines = interop.colossal("fold", "--from", interop.temp_dir / name, "--input", "x.fasta", "--to", out, "--tensors",
                             out, "--pae", out, "--json", *flags).splitlines()
    for line, (key, chains) in zip(map(json.loads, lines), CHAINS.items(), strict=True):
        positions, mask, plddt, errors = folded(peer, chains)
        ours = safetensors.load_file(out / f"{key}.safetensors")
        off = {"positions": (ours["positions"] - positions).abs().max().item(),
               "plddt": (ours["atom_plddt"] - plddt).abs().max().item(),
               "errors": (ours["errors"] - errors).abs().max().item()}
        assert torch.equal(ours["atom_mask"], mask) and line["residues"] == len(mask), (name, key)
        assert off["positions"] < 1e-5 * positions.abs().max() + 1e-5 and max(off.values()) < 1e-3, (name, key, off)
        print(name, key, *flags, off)


for name, sizes in {"small": (16, 2, 16, 12, 3), "odd": (24, 4, 20, 8, 2)}.items():
    model(*sizes).save_pretrained(interop.temp_dir / name)
    peer = transformers.EsmForProteinFolding.from_pretrained(interop.temp_dir / name).eval().float()
    check(name, peer)
    if name == "small":
        check(name, peer, "--parallel.pipeline=2")
