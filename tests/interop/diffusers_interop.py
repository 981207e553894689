"""Compares models and pipelines of pictures with diffusers, both ways: random folders of each part at odd shapes, whole
drawings by each scheduler, and folders that we write back."""

import importlib
import json
import os
import pathlib
import subprocess

import interop
import sampler_steps

np, torch, transformers, diffusers = interop.need("numpy", "torch", "transformers", "diffusers")
from safetensors.torch import load_file, save_file  # noqa: E402  (after need())

torch.set_num_threads(1)
diffusers.utils.logging.set_verbosity_error()
transformers.utils.logging.set_verbosity_error()

WORDS = ["a", "red", "circle", "on", "the", "moon", "horse", "riding"]


def tokenizer(folder):
    """Writes CLIP's BPE with few words, each with its merges."""
    alphabet = list(transformers.models.gpt2.tokenization_gpt2.bytes_to_unicode().values()) if hasattr(
        transformers.models.gpt2.tokenization_gpt2, "bytes_to_unicode") else [chr(c) for c in range(33, 127)]
    vocabulary = alphabet + [letter + "</w>" for letter in alphabet]
    merges = []
    for word in WORDS:
        parts = [*word[:-1], word[-1] + "</w>"]
        while len(parts) > 1:
            merges.append(f"{parts[0]} {parts[1]}")
            parts = [parts[0] + parts[1], *parts[2:]]
            vocabulary.append(parts[0])
    vocabulary = list(dict.fromkeys(vocabulary)) + ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(dict.fromkeys(merges)) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "CLIPTokenizer", "bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "model_max_length": 77, "do_lower_case": True}))
    (folder / "special_tokens_map.json").write_text(json.dumps({
        "bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>"}))
    return len(vocabulary)


def randomly(model, seed):
    """Gives a model new weights: norms and biases too, so that each of them affects the results."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def distance(got, wanted):
    return (got.double() - wanted.double()).abs().max().item() / wanted.abs().max().item()


def close(name, got, wanted, limit):
    off = distance(got, wanted)
    assert got.shape == wanted.shape and off <= limit, (name, got.shape, wanted.shape, off, limit)
    print(name, "agrees within", off)


def lifted(model):
    """Returns the model in fp64. diffusers computes sinusoids of times in fp32 all the same."""
    return model.double()


def probe(folder, batch, dtype, *adapters):
    save_file({name: x.contiguous() for name, x in batch.items()}, interop.temp_dir / "batch.safetensors")
    out = interop.temp_dir / "results.safetensors"
    done = subprocess.run([os.environ["COLOSSAL_PICTURE_PROBE"], folder, interop.temp_dir / "batch.safetensors", out,
                           dtype, *adapters], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return load_file(out)


def in_both(name, folder, model, batch, theirs, *adapters):
    """Compares the results of a folder in fp32 and fp64. `theirs` computes them from a batch of that dtype."""
    for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        model = model.to(dtype)
        typed = {key: x.to(dtype) if x.is_floating_point() else x for key, x in batch.items()}
        got = probe(folder, typed, "float" if dtype == torch.float32 else "double", *adapters)
        with torch.no_grad():
            for key, wanted in theirs(model, typed).items():
                close(f"{name}.{key} {dtype}", got[key], wanted, limit)
    return model.float()


def exact_times(module):
    """Lets diffusers compute the sinusoids of times in fp64, so that its results can be compared to 1e-9."""
    import math

    def sinusoids(timesteps, dim, flip_sin_to_cos=False, downscale_freq_shift=1, scale=1, max_period=10000):
        half = dim // 2
        exponent = -math.log(max_period) * torch.arange(half, dtype=torch.float64) / (half - downscale_freq_shift)
        angles = scale * timesteps[:, None].double() * exponent.exp()[None]
        parts = [angles.cos(), angles.sin()] if flip_sin_to_cos else [angles.sin(), angles.cos()]
        return torch.cat(parts, -1)

    module.get_timestep_embedding = sinusoids


exact_times(diffusers.models.embeddings)


def exact_rotary(module):
    """Lets a module of diffusers turn pairs of features in fp64."""

    def table(dim, positions, theta=10000.0, **_):
        frequencies = theta**(-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = torch.outer(positions.double(), frequencies).repeat_interleave(2, 1)
        return angles.cos(), angles.sin()

    def turned(x, turns, sequence_dim):
        assert sequence_dim == 1
        cos, sin = (t[None, :, None] for t in turns)
        first, second = x.double().unflatten(-1, (-1, 2)).unbind(-1)
        return (x.double() * cos + torch.stack([-second, first], -1).flatten(-2) * sin).to(x.dtype)

    module.get_1d_rotary_pos_embed, module.apply_rotary_emb = table, turned


exact_rotary(importlib.import_module("diffusers.models.transformers.transformer_flux"))
diffusers.models.normalization.RMSNorm.forward = lambda self, x: torch.nn.functional.rms_norm(  # in fp32 otherwise
    x, x.shape[-1:], self.weight, self.eps)

UNET = dict(block_out_channels=(32, 64), layers_per_block=1, sample_size=8, in_channels=4, out_channels=4,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=32, norm_num_groups=8,
            attention_head_dim=4)
VAE = dict(block_out_channels=(16, 32), layers_per_block=1, latent_channels=4, norm_num_groups=8, sample_size=16,
           down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)


def pipeline(name, scheduler, **unet):
    folder = interop.temp_dir / name
    vocabulary = tokenizer(folder / "tokenizer")
    text = randomly(transformers.CLIPTextModel(transformers.CLIPTextConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=77, bos_token_id=vocabulary - 2, eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1, projection_dim=24)), 1)
    model = randomly(diffusers.UNet2DConditionModel(**UNET | unet), 2)
    vae = randomly(diffusers.AutoencoderKL(**VAE), 3)
    whole = diffusers.StableDiffusionPipeline(
        vae=vae, text_encoder=text, tokenizer=transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer"),
        unet=model, scheduler=scheduler, safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    whole.save_pretrained(folder)
    whole.set_progress_bar_config(disable=True)
    return folder, whole


SCHEDULE = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000)
PNDM = diffusers.PNDMScheduler(**SCHEDULE, skip_prk_steps=True, set_alpha_to_one=False, steps_offset=1)
folder, whole = pipeline("sd", PNDM)
folder_2, whole_2 = pipeline("sd2", diffusers.DDIMScheduler(
    **SCHEDULE, prediction_type="v_prediction", set_alpha_to_one=False, steps_offset=1, clip_sample=False),
    attention_head_dim=(2, 4), use_linear_projection=True)


def parts():
    torch.manual_seed(7)
    for name, at, model, shape in (("unet", folder / "unet", whole.unet, (2, 4, 6, 10)),
                                   ("unet odd", folder / "unet", whole.unet, (1, 4, 5, 7)),
                                   ("unet of 2.1", folder_2 / "unet", whole_2.unet, (1, 4, 5, 6))):
        batch = {"noised": torch.randn(shape), "times": torch.full((shape[0],), 500.0),
                 "text": torch.randn(shape[0], 77, 32)}
        in_both(name, at, model, batch, lambda m, b: {
            "predicted": m(b["noised"], b["times"], encoder_hidden_states=b["text"]).sample})
    for size in ((16, 16), (10, 14)):
        cells = tuple(side // 2 for side in size)
        batch = {"pixels": torch.randn(1, 3, *size), "latents": torch.randn(1, 4, *cells)}
        in_both(f"vae {size}", folder / "vae", whole.vae, batch, lambda m, b: {
            "moments": (lambda d: torch.cat([d.mean, d.logvar], 1))(m.encode(b["pixels"]).latent_dist),
            "decoded": m.decode(b["latents"]).sample})
    tiled = {"pixels": torch.randn(1, 3, 26, 40), "latents": torch.randn(1, 4, 9, 21), "tiles": torch.zeros(1)}
    whole.vae.enable_tiling()
    in_both("vae in tiles", folder / "vae", whole.vae, tiled, lambda m, b: {
        "means": m.encode(b["pixels"]).latent_dist.mean, "decoded": m.decode(b["latents"]).sample})
    whole.vae.disable_tiling()
    ids = whole.tokenizer(["a red circle on the moon", "horse"], padding="max_length", truncation=True,
                          return_tensors="pt").input_ids
    in_both("text", folder / "text_encoder", whole.text_encoder, {"ids": ids}, lambda m, b: {
        "states": m(b["ids"]).last_hidden_state, "pooled": m(b["ids"]).pooler_output})


def clips():
    """Compares HunyuanVideo's autoencoder of clips, also at sides that are no whole cells, and writes its folder
    back."""
    torch.manual_seed(23)
    model = randomly(diffusers.AutoencoderKLHunyuanVideo(
        block_out_channels=(8, 16, 16, 16), layers_per_block=1, norm_num_groups=4, latent_channels=4), 21)
    source, out = interop.temp_dir / "hunyuan-video-vae", interop.temp_dir / "hunyuan-video-vae-back"
    model.save_pretrained(source)
    for frames, height, width in ((5, 18, 30), (9, 8, 25)):
        batch = {"pixels": torch.randn(1, 3, frames, height, width),
                 "latents": torch.randn(2, 4, (frames + 3) // 4, height // 8, width // 8)}
        in_both(f"vae of clips {frames} x {height} x {width}", source, model, batch, lambda m, b: {
            "moments": (lambda d: torch.cat([d.mean, d.logvar], 1))(m.encode(b["pixels"]).latent_dist),
            "decoded": m.decode(b["latents"]).sample})
    interop.colossal("export", "--from", source, "--to", out)
    same_files(out, source)
    assert plain(diffusers.AutoencoderKLHunyuanVideo.from_pretrained(out).config) == plain(model.config)
    print("vae of clips is written back bit for bit")


def clips_of_open_sora():
    """Writes a folder of the form of OpenSora-VAE-v1.2 back: an AutoencoderKL of frames, and causal convolutions."""
    tensors = {"shift": torch.tensor([-.1, .34, .27, .98]).view(1, 4, 1, 1, 1),
               "scale": torch.tensor([3.85, 2.32, 2.33, 3.06]).view(1, 4, 1, 1, 1)}
    of_frames = diffusers.AutoencoderKL(**VAE | dict(block_out_channels=(8, 16), norm_num_groups=4))
    tensors |= {"spatial_vae.module." + name: x for name, x in randomly(of_frames, 27).state_dict().items()}

    def conv(name, inputs, outputs, side=3, bias=True):
        tensors[f"{name}.conv.weight"] = torch.randn(outputs, inputs, side, side, side)
        if bias:
            tensors[f"{name}.conv.bias"] = torch.randn(outputs)

    def norm(name, size):
        tensors.update({f"{name}.weight": torch.randn(size), f"{name}.bias": torch.randn(size)})

    def resnet(name, inputs, outputs):
        norm(f"{name}.norm1", inputs), norm(f"{name}.norm2", outputs)
        conv(f"{name}.conv1", inputs, outputs, bias=False), conv(f"{name}.conv2", outputs, outputs, bias=False)
        if inputs != outputs:
            conv(f"{name}.conv3", inputs, outputs, 1, bias=False)

    encoder, decoder = "temporal_vae.encoder.", "temporal_vae.decoder."
    conv(encoder + "conv_in", 4, 8, bias=False)
    for level, inputs, outputs in ((0, 8, 8), (1, 8, 16)):
        resnet(f"{encoder}block_res_blocks.{level}.0", inputs, outputs)
        resnet(f"{decoder}block_res_blocks.{level}.0", 16, outputs)
    conv(encoder + "conv_blocks.0", 8, 8), conv(decoder + "conv_blocks.0", 16, 32)
    resnet(encoder + "res_blocks.0", 16, 16), resnet(decoder + "res_blocks.0", 16, 16)
    norm(encoder + "norm1", 16), norm(decoder + "norm1", 8)
    conv(encoder + "conv2", 16, 8, 1), conv(decoder + "conv1", 4, 16), conv(decoder + "conv_out", 8, 4)
    conv("temporal_vae.quant_conv", 8, 8, 1), conv("temporal_vae.post_quant_conv", 4, 4, 1)
    source, out = interop.temp_dir / "open-sora-vae", interop.temp_dir / "open-sora-vae-back"
    source.mkdir()
    config = {"model_type": "VideoAutoencoderPipeline", "architectures": ["VideoAutoencoderPipeline"],
              "micro_frame_size": 17, "shift": [-.1, .34, .27, .98], "scale": [3.85, 2.32, 2.33, 3.06],
              "vae_2d": {"type": "VideoAutoencoderKL", "block_out_channels": [8, 16], "layers_per_block": 1,
                         "norm_num_groups": 4},
              "vae_temporal": {"type": "VAE_Temporal", "in_out_channels": 4, "latent_embed_dim": 4, "embed_dim": 4,
                               "filters": 8, "num_res_blocks": 1, "channel_multipliers": [1, 2],
                               "temporal_downsample": [True], "num_groups": 4}}
    (source / "config.json").write_text(json.dumps(config))
    save_file({name: x.contiguous() for name, x in tensors.items()}, source / "model.safetensors",
              metadata={"format": "pt"})
    interop.colossal("export", "--from", source, "--to", out)
    same_files(out, source)
    written = json.loads((out / "config.json").read_text())
    assert all(written[key] == config[key] for key in config if key != "vae_2d"), written
    assert config["vae_2d"].items() <= written["vae_2d"].items(), written
    print("Open-Sora's vae of clips is written back bit for bit")


SD3 = dict(sample_size=8, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
           joint_attention_dim=24, caption_projection_dim=32, pooled_projection_dim=20, pos_embed_max_size=6)
FLUX = dict(in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=24, pooled_projection_dim=20, axes_dims_rope=(4, 6, 6))


def by_sd3(model, batch):
    return {"predicted": model(batch["noised"], batch["text"], batch["pooled"], batch["times"]).sample}


def by_flux(model, batch):
    """Packs a picture as FLUX's pipeline does, and unpacks the prediction."""
    x = batch["noised"]
    rows, columns, channels = x.shape[2] // 2, x.shape[3] // 2, x.shape[1]
    packed = x.view(-1, channels, rows, 2, columns, 2).permute(0, 2, 4, 1, 3, 5).reshape(len(x), rows * columns, -1)
    places = torch.zeros(rows, columns, 3)
    places[..., 1], places[..., 2] = torch.arange(rows)[:, None], torch.arange(columns)
    y = model(packed, batch["text"], batch["pooled"], batch["times"] / 1000, places.view(-1, 3),
              torch.zeros(batch["text"].shape[1], 3), batch.get("guidance")).sample
    return {"predicted": y.view(-1, rows, columns, channels, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(x.shape)}


def joint_transformers():
    """Compares the transformers of Stable Diffusion 3 and FLUX, and writes their folders back."""
    for name, model, theirs in (
            ("sd3", diffusers.SD3Transformer2DModel(**SD3), by_sd3),
            ("sd3.5", diffusers.SD3Transformer2DModel(**SD3, qk_norm="rms_norm"), by_sd3),
            ("flux-dev", diffusers.FluxTransformer2DModel(**FLUX, guidance_embeds=True), by_flux),
            ("flux-schnell", diffusers.FluxTransformer2DModel(**FLUX), by_flux)):
        source, out = interop.temp_dir / name, interop.temp_dir / f"{name}-back"
        randomly(model, 13).save_pretrained(source)
        for rows, height, width in ((2, 6, 10), (1, 10, 2)):
            batch = {"noised": torch.randn(rows, 4, height, width), "times": torch.full((rows, ), 750.0),
                     "text": torch.randn(rows, 7, 24), "pooled": torch.randn(rows, 20)}
            if name == "flux-dev":
                batch["guidance"] = torch.full((rows, ), 3.5)
            in_both(f"{name} {height} x {width}", source, model, batch, theirs)
        interop.colossal("export", "--from", source, "--to", out)
        same_files(out, source)
        again = type(model).from_pretrained(out)
        assert plain(again.config) == plain(model.config), (plain(again.config), plain(model.config))
        print(name, "is written back bit for bit")


def makers_sd3():
    """Reads a file of the makers of Stable Diffusion 3 as the conversion of diffusers does. Its heads have 64
    features."""
    from diffusers.loaders.single_file_utils import convert_sd3_transformer_checkpoint_to_diffusers
    model = diffusers.SD3Transformer2DModel(
        **SD3 | dict(attention_head_dim=64, num_attention_heads=2, caption_projection_dim=128))
    sizes = {"x_embedder.proj": (128, 4, 2, 2), "context_embedder": (128, 24), "final_layer.linear": (16, 128),
             "t_embedder.mlp.0": (128, 256), "t_embedder.mlp.2": (128, 128), "y_embedder.mlp.0": (128, 20),
             "y_embedder.mlp.2": (128, 128), "final_layer.adaLN_modulation.1": (256, 128)}
    for block in (f"joint_blocks.{i}.{stream}_block." for i in (0, 1) for stream in ("x", "context")):
        ends = block == "joint_blocks.1.context_block."
        sizes |= {block + "attn.qkv": (384, 128), block + "adaLN_modulation.1": (256 if ends else 768, 128)}
        if not ends:
            sizes |= {block + "attn.proj": (128, 128), block + "mlp.fc1": (512, 128), block + "mlp.fc2": (128, 512)}
    torch.manual_seed(17)
    file = {f"{name}.{kind}": torch.randn(size if kind == "weight" else size[:1]) * 0.1
            for name, size in sizes.items() for kind in ("weight", "bias")} | {"pos_embed": model.pos_embed.pos_embed}
    path = interop.temp_dir / "sd3.safetensors"
    save_file({"model.diffusion_model." + name: x.contiguous() for name, x in file.items()}, path)
    model.load_state_dict(convert_sd3_transformer_checkpoint_to_diffusers(dict(file)))
    batch = {"noised": torch.randn(1, 4, 6, 4), "times": torch.full((1, ), 250.0), "text": torch.randn(1, 7, 24),
             "pooled": torch.randn(1, 20)}
    in_both("makers' sd3", path, model.eval(), batch, by_sd3)


def makers_flux():
    """Reads a file of the makers of FLUX. The conversion of diffusers knows one hidden size, so its inverse makes the
    file, of an eighth of each head for frames."""
    model = randomly(diffusers.FluxTransformer2DModel(**FLUX | dict(attention_head_dim=32, axes_dims_rope=(4, 14, 14))),
                     19)
    layers = {"img_in": "x_embedder", "txt_in": "context_embedder", "final_layer.linear": "proj_out"}
    for theirs, ours in (("time_in.", "timestep"), ("vector_in.", "text")):
        embedder = f"time_text_embed.{ours}_embedder.linear_"
        layers |= {theirs + "in_layer": embedder + "1", theirs + "out_layer": embedder + "2"}
    for stream, norm, q, k, v, out, mlp in (
            ("img", "norm1", "to_q", "to_k", "to_v", "to_out.0", "ff"),
            ("txt", "norm1_context", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "ff_context")):
        theirs, ours = f"double_blocks.0.{stream}_", "transformer_blocks.0."
        layers |= {theirs + "attn.qkv": " ".join(f"{ours}attn.{part}" for part in (q, k, v)),
                   theirs + "attn.proj": f"{ours}attn.{out}", theirs + "mod.lin": f"{ours}{norm}.linear",
                   theirs + "mlp.0": f"{ours}{mlp}.net.0.proj", theirs + "mlp.2": f"{ours}{mlp}.net.2"}
    for i in (0, 1):
        theirs, ours = f"single_blocks.{i}.", f"single_transformer_blocks.{i}."
        layers |= {theirs + "linear1": f"{ours}attn.to_q {ours}attn.to_k {ours}attn.to_v {ours}proj_mlp",
                   theirs + "linear2": ours + "proj_out", theirs + "modulation.lin": ours + "norm.linear"}
    state = model.state_dict()
    file = {f"{theirs}.{kind}": torch.cat([state[f"{part}.{kind}"] for part in ours.split()])
            for theirs, ours in layers.items() for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):
        file["final_layer.adaLN_modulation.1." + kind] = torch.cat(state["norm_out.linear." + kind].chunk(2)[::-1])
    for name in (name for name in state if ".norm_" in name):
        stream = "" if name.startswith("single") else "txt_attn." if "added" in name else "img_attn."
        block = name.split("attn.")[0].replace("single_transformer", "single").replace("transformer", "double")
        of = "query" if name.endswith("q.weight") else "key"
        file[f"{block}{stream}norm.{of}_norm.scale"] = state[name]
    path = interop.temp_dir / "flux.safetensors"
    save_file({name: x.contiguous() for name, x in file.items()}, path)
    batch = {"noised": torch.randn(1, 4, 6, 4), "times": torch.full((1, ), 250.0), "text": torch.randn(1, 7, 24),
             "pooled": torch.randn(1, 20)}
    in_both("makers' flux", path, model, batch, by_flux)


def drawings():
    """Draws by each scheduler from the same latents, and compares pixels of 8 bits."""
    from PIL import Image
    torch.manual_seed(9)
    latents = torch.randn(1, 4, 8, 8)
    save_file({"latents": latents}, interop.temp_dir / "latents.safetensors")
    for name, kind in (("", None), ("ddim", diffusers.DDIMScheduler), ("euler", diffusers.EulerDiscreteScheduler),
                       ("heun", diffusers.HeunDiscreteScheduler), ("dpm++2m", diffusers.DPMSolverMultistepScheduler),
                       ("unipc", diffusers.UniPCMultistepScheduler)):
        if kind is not None:
            # The pipeline turns clip_sample off when it opens a folder.
            whole.scheduler = kind.from_pretrained(folder, subfolder="scheduler", clip_sample=False)
        wanted = whole("a red circle", negative_prompt="horse", num_inference_steps=5, guidance_scale=3.0,
                       latents=latents.clone(), output_type="np").images[0]
        out = interop.temp_dir / "drawn.png"
        interop.colossal("draw", "--from", folder, "--prompt", "a red circle", "--negative", "horse", "--steps", 5,
                         "--guidance", 3, "--latents", interop.temp_dir / "latents.safetensors", "--to", out,
                         *(("--sampler", name) if name else ()))
        got = np.asarray(Image.open(out)).astype(int)
        off = np.abs(got - (wanted * 255).round()).max()
        assert got.shape == wanted.shape and off <= 1, (name, got.shape, wanted.shape, off)
        print("drawing", name or "pndm", "is off by", off)


def t5_tokenizer(folder):
    """Writes T5's tokenizer of few pieces."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -3.0)]
    pieces += [("\u2581" + word, -4.0 - i) for i, word in enumerate(WORDS)]
    pieces += [(letter, -9.0) for letter in "abcdefghijklmnopqrstuvwxyz"]
    transformers.T5Tokenizer(vocab=pieces, extra_ids=0, additional_special_tokens=["<extra_id_0>"],
                             model_max_length=512).save_pretrained(folder)
    return len(pieces) + 1


def large_pipelines():
    """Returns random pipelines of SDXL, Stable Diffusion 3 and FLUX, each with the options of its calls."""

    def clip(at, kind, hidden, projection, seed):
        vocabulary = tokenizer(at)
        return randomly(kind(transformers.CLIPTextConfig(
            vocab_size=vocabulary, hidden_size=hidden, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, max_position_embeddings=77, bos_token_id=vocabulary - 2,
            eos_token_id=vocabulary - 1, pad_token_id=vocabulary - 1, projection_dim=projection)), seed)

    def t5(at, seed):
        return randomly(transformers.T5EncoderModel(transformers.T5Config(
            vocab_size=t5_tokenizer(at) + 7, d_model=24, d_kv=8, d_ff=48, num_layers=2, num_heads=2,
            feed_forward_proj="gated-gelu", is_encoder_decoder=False, use_cache=False)), seed)

    plain, projected = transformers.CLIPTextModel, transformers.CLIPTextModelWithProjection
    read = transformers.CLIPTokenizer.from_pretrained
    flow = diffusers.FlowMatchEulerDiscreteScheduler
    vae = randomly(diffusers.AutoencoderKL(**VAE, shift_factor=0.1, scaling_factor=0.4), 3)
    tables = interop.temp_dir / "tokenizers"
    first = clip(tables / "clip", plain, 32, 24, 21)
    second, third = (clip(tables / "clip", projected, width, 10, seed) for width, seed in ((8, 22), (16, 23)))
    of_t5 = t5(tables / "t5", 24)
    clips = {"tokenizer": read(tables / "clip"), "tokenizer_2": read(tables / "clip")}
    pieces = transformers.T5Tokenizer.from_pretrained(tables / "t5")
    unet = randomly(diffusers.UNet2DConditionModel(**UNET | dict(
        cross_attention_dim=40, transformer_layers_per_block=(2, 1), use_linear_projection=True,
        addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=58,
        attention_head_dim=(2, 4))), 25)
    xl = diffusers.StableDiffusionXLPipeline(
        vae=whole.vae, text_encoder=first, text_encoder_2=second, unet=unet, add_watermarker=False,
        scheduler=diffusers.EulerDiscreteScheduler(**SCHEDULE, timestep_spacing="leading", steps_offset=1), **clips)
    of_sd3 = dict(vae=vae, text_encoder=second, text_encoder_2=third, scheduler=flow(shift=3.0), **clips,
                  transformer=randomly(diffusers.SD3Transformer2DModel(**SD3), 26))
    sd3 = diffusers.StableDiffusion3Pipeline(text_encoder_3=of_t5, tokenizer_3=pieces, **of_sd3)
    without = diffusers.StableDiffusion3Pipeline(text_encoder_3=None, tokenizer_3=None, **of_sd3)
    of_flux = dict(vae=vae, text_encoder=clip(tables / "clip", plain, 20, 20, 27), text_encoder_2=of_t5,
                   tokenizer=clips["tokenizer"], tokenizer_2=pieces)
    dev = diffusers.FluxPipeline(
        scheduler=flow(use_dynamic_shifting=True, shift=3.0),
        transformer=randomly(diffusers.FluxTransformer2DModel(**FLUX, guidance_embeds=True), 28), **of_flux)
    schnell = diffusers.FluxPipeline(
        scheduler=flow(), transformer=randomly(diffusers.FluxTransformer2DModel(**FLUX), 29), **of_flux)
    guided = {"guidance_scale": 3.0}
    return {"sdxl": (xl, guided), "sdxl negative": (xl, guided | {"negative_prompt": "horse"}),
            "sd3": (sd3, guided | {"negative_prompt": "horse"}), "sd3 without t5": (without, guided),
            "flux-dev": (dev, guided | {"max_sequence_length": 512}),
            "flux-schnell": (schnell, {"guidance_scale": 1.0, "max_sequence_length": 256})}


def large_drawings():
    """Draws with SDXL, Stable Diffusion 3 and FLUX from the same latents, compares pixels of 8 bits, and writes the
    folders back."""
    from PIL import Image
    torch.manual_seed(31)
    latents = torch.randn(1, 4, 8, 12)
    save_file({"latents": latents}, interop.temp_dir / "latents.safetensors")
    for name, (pipeline, options) in large_pipelines().items():
        at, out = interop.temp_dir / name.split()[0].replace("flux", "whole-flux"), interop.temp_dir / "drawn.png"
        at = at.with_name(at.name + ("-2" if "without" in name else "-1"))
        if not at.exists():
            pipeline.save_pretrained(at)
        pipeline.set_progress_bar_config(disable=True)
        given = latents
        if "flux" in name:
            given = latents.view(1, 4, 4, 2, 6, 2).permute(0, 2, 4, 1, 3, 5).reshape(1, 24, 16)
        wanted = pipeline("a red circle", num_inference_steps=4, latents=given.clone(), height=16, width=24,
                          output_type="np", **options).images[0]
        flags = [word for option, flag in (("negative_prompt", "--negative"), ("guidance_scale", "--guidance"))
                 if option in options for word in (flag, options[option])]
        interop.colossal("draw", "--from", at, "--prompt", "a red circle", "--steps", 4, "--size", "24x16",
                         "--latents", interop.temp_dir / "latents.safetensors", "--to", out, *flags)
        got = np.asarray(Image.open(out)).astype(int)
        off = np.abs(got - (wanted * 255).round()).max()
        assert got.shape == wanted.shape and off <= 1, (name, got.shape, wanted.shape, off)
        assert wanted.std() > 0.02, (name, "the picture must differ from place to place", wanted.std())
        print("drawing", name, "is off by", off)
        if "negative" in name or "without" in name:
            continue
        back = at.with_name(at.name + "-back")
        interop.colossal("export", "--from", at, "--to", back)
        same_files(back, at)
        type(pipeline).from_pretrained(back)
        print(name, "is written back bit for bit")


def from_pictures():
    """Draws from a picture and inside a mask, by UNets of 4 and of 9 input channels. The autoencoder gets latents
    without a deviation, because diffusers samples them."""
    from PIL import Image
    rng = np.random.default_rng(3)
    pixels = Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8))
    covered = np.zeros((16, 16), dtype=np.uint8)
    covered[4:12, 6:16] = 255
    mask = Image.fromarray(covered)
    pixels.save(interop.temp_dir / "in.png")
    mask.save(interop.temp_dir / "mask.png")
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(11))
    save_file({"latents": noise}, interop.temp_dir / "latents.safetensors")
    with torch.no_grad():
        whole.vae.quant_conv.weight[4:].zero_()
        whole.vae.quant_conv.bias[4:].fill_(-30)
    whole.scheduler = diffusers.DDIMScheduler.from_pretrained(folder, subfolder="scheduler", clip_sample=False)
    nine = randomly(diffusers.UNet2DConditionModel(**UNET | {"in_channels": 9}), 5)
    parts = {key: value for key, value in whole.components.items() if key not in ("image_encoder", )}
    cases = (("from a picture", diffusers.StableDiffusionImg2ImgPipeline, {}, {"strength": 0.6}),
             ("inside a mask", diffusers.StableDiffusionInpaintPipeline, {}, {"strength": 0.8}),
             ("of 9 channels", diffusers.StableDiffusionInpaintPipeline, {"unet": nine}, {"strength": 1.0}))
    for name, kind, other, options in cases:
        their = kind(**parts | other, requires_safety_checker=False)
        their.set_progress_bar_config(disable=True)
        at = interop.temp_dir / ("pictures-" + name.replace(" ", "-"))
        their.save_pretrained(at)
        module = importlib.import_module(kind.__module__)
        module.randn_tensor = lambda shape, **_: noise.clone()
        masked = {} if name == "from a picture" else {"mask_image": mask, "height": 16, "width": 16}
        wanted = their("a red circle", image=pixels, num_inference_steps=5, guidance_scale=3.0, output_type="np",
                       **options, **masked).images[0]
        out = interop.temp_dir / "drawn.png"
        interop.colossal("draw", "--from", at, "--prompt", "a red circle", "--steps", 5, "--guidance", 3, "--image",
                         interop.temp_dir / "in.png", "--strength", options["strength"], "--latents",
                         interop.temp_dir / "latents.safetensors", "--to", out,
                         *(("--mask", interop.temp_dir / "mask.png") if masked else ()))
        got = np.asarray(Image.open(out)).astype(int)
        off = np.abs(got - (wanted * 255).round()).max()
        assert got.shape == wanted.shape and off <= 1, (name, off)
        print("drawing", name, "is off by", off)


def files(folder):
    return {path.relative_to(folder): load_file(path) for path in sorted(pathlib.Path(folder).rglob("*.safetensors"))}


def same_files(out, source):
    got, wanted = files(out), files(source)
    assert got.keys() == wanted.keys(), (got.keys(), wanted.keys())
    for path, tensors in wanted.items():
        assert got[path].keys() == tensors.keys(), path
        assert all(torch.equal(got[path][key], x) for key, x in tensors.items()), path


def plain(config):
    """Returns the keys of a config as they are in JSON, without those about the config itself."""
    return json.loads(json.dumps({key: value for key, value in config.items() if key[0] != "_"}))


def written_back():
    whole.scheduler = PNDM
    wholes = {"sd": whole, "sd2": whole_2}
    for name, source in (("sd", folder), ("sd2", folder_2)):
        out = interop.temp_dir / f"{name}-back"
        interop.colossal("export", "--from", source, "--to", out)
        same_files(out, source)
        again = diffusers.StableDiffusionPipeline.from_pretrained(out)
        for part in ("unet", "vae", "scheduler"):
            ours, theirs = (plain(getattr(one, part).config) for one in (again, wholes[name]))
            assert ours == theirs, (name, part, {key for key in ours.keys() | theirs.keys()
                                                 if ours.get(key) != theirs.get(key)})
        assert type(again.scheduler) is type(wholes[name].scheduler)
        print(name, "is written back bit for bit")


def with_adapters(model, targets, alpha=6):
    """Gives a model adapters of rank 4 and of random values."""
    from peft import LoraConfig
    model.add_adapter(LoraConfig(r=4, lora_alpha=alpha, target_modules=targets, init_lora_weights=False))
    return model


def drawn(adapters, source=folder):
    """Draws with adapters and returns the pixels."""
    from PIL import Image
    out = interop.temp_dir / "adapted.png"
    interop.colossal("draw", "--from", source, "--prompt", "a red circle", "--steps", 5, "--guidance", 3,
                     "--latents", interop.temp_dir / "latents.safetensors", "--to", out,
                     *(word for adapter in adapters for word in ("--adapter", adapter)))
    return np.asarray(Image.open(out)).astype(int)


def drawn_by_diffusers(pipeline):
    latents = load_file(interop.temp_dir / "latents.safetensors")["latents"]
    return (pipeline("a red circle", num_inference_steps=5, guidance_scale=3.0, latents=latents,
                     output_type="np").images[0] * 255).round()


def adapters():
    """Reads what diffusers saves, with each kind of layer, and lets diffusers read ours in both forms."""
    from diffusers.training_utils import _collate_lora_metadata
    from diffusers.utils import convert_state_dict_to_diffusers
    from peft.utils import get_peft_model_state_dict
    again = diffusers.StableDiffusionPipeline.from_pretrained(folder, safety_checker=None)
    again.set_progress_bar_config(disable=True)
    plain = drawn_by_diffusers(again)
    torch.manual_seed(11)
    with_adapters(again.unet, ["to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out",
                               "conv1", "conv_shortcut", "time_emb_proj", "conv", "linear_1", "conv_in"])
    saved = interop.temp_dir / "lora"
    diffusers.StableDiffusionPipeline.save_lora_weights(
        saved, unet_lora_layers=convert_state_dict_to_diffusers(get_peft_model_state_dict(again.unet)),
        **_collate_lora_metadata({"unet": again.unet}))
    wanted = drawn_by_diffusers(again)
    got = drawn([saved])
    assert np.abs(wanted - plain).max() > 5, "the adapters must change the picture"
    assert np.abs(got - wanted).max() <= 1, np.abs(got - wanted).max()
    print("adapters of diffusers are off by", np.abs(got - wanted).max())

    run = interop.temp_dir / "lora-run"
    interop.colossal("train", interop.source_dir / "examples/sd_lora.toml", f"--run.folder={run}",
                     f"--model.from={folder}", "--data.path=builtin-shapes:16", "--data.held_out=0",
                     "--data.size=16,16", "--adapter.alpha=6",
                     '--adapter.targets=["to_q", "to_out.0", "ff.net.0.proj", "conv1", "conv2", "proj_in", '
                     '"conv_shortcut", "q_proj", "fc2"]',
                     "--adapter.text_encoder=true",
                     "--training.steps=3", "--training.batch_size=4", "--training.evaluate_every=0",
                     "--optimizer.warmup_steps=0", "--optimizer.learning_rate=0.1")
    ours = drawn([run])
    for form in ("peft", "kohya"):
        out = interop.temp_dir / f"lora-{form}"
        interop.colossal("export", "--from", run, "--adapter-only", "--adapter-form", form, "--to", out)
        tensors = load_file(out / "pytorch_lora_weights.safetensors")
        assert any(key.startswith(("text_encoder.text_model.", "lora_te_text_model_")) for key in tensors), form
        assert np.abs(ours - drawn([out])).max() <= 1, form
        if form == "kohya":  # whose names of text encoders diffusers 0.42 does not find in transformers 5
            out = interop.temp_dir / "lora-of-unet.safetensors"
            save_file({key: x for key, x in tensors.items() if not key.startswith("lora_te_")}, out)
        again = diffusers.StableDiffusionPipeline.from_pretrained(folder, safety_checker=None)
        again.set_progress_bar_config(disable=True)
        again.load_lora_weights(str(out))
        wanted = drawn_by_diffusers(again)
        assert np.abs(wanted - plain).max() > 5, "the adapters must change the picture"
        got = drawn([out])
        assert np.abs(got - wanted).max() <= 1, (form, np.abs(got - wanted).max())
        print("our adapters as", form, "are off by", np.abs(got - wanted).max())
    out = interop.temp_dir / "lora-merged"
    interop.colossal("export", "--from", run, "--to", out)
    again = diffusers.StableDiffusionPipeline.from_pretrained(out, safety_checker=None)
    again.set_progress_bar_config(disable=True)
    wanted = drawn_by_diffusers(again)
    for got in (ours, drawn([], run)):
        assert np.abs(got - wanted).max() <= 1, np.abs(got - wanted).max()
    print("our adapters merged into both models are off by", np.abs(ours - wanted).max())


def gradients():
    """Compares the loss and the gradients of adapters of both models, with layers between blocks, with peft's."""
    from peft.utils import get_peft_model_state_dict
    again = diffusers.StableDiffusionPipeline.from_pretrained(folder, safety_checker=None)
    torch.manual_seed(13)
    # The rank as alpha: without the header, alphas are the ranks.
    of_unet = ["to_q", "to_k", "ff.net.0.proj", "conv1", "proj_in", "linear_2", "conv_in", "conv_out"]
    with_adapters(again.unet, of_unet, 4)
    with_adapters(again.text_encoder, ["q_proj", "fc2"], 4)
    saved = interop.temp_dir / "lora-of-both"
    diffusers.StableDiffusionPipeline.save_lora_weights(
        saved, unet_lora_layers=get_peft_model_state_dict(again.unet),
        text_encoder_lora_layers=get_peft_model_state_dict(again.text_encoder))
    batch = {"noised": torch.randn(2, 4, 5, 7), "times": torch.tensor([500.0, 20.0]),
             "weights": torch.randn(2, 4, 5, 7),
             "ids": whole.tokenizer(["a red circle", "horse"], padding="max_length", return_tensors="pt").input_ids}
    for dtype, limit in ((torch.float32, 1e-4), (torch.float64, 1e-9)):
        parts = {"text_encoder.": again.text_encoder.to(dtype), "": again.unet.to(dtype)}
        typed = {key: x.to(dtype) if x.is_floating_point() else x for key, x in batch.items()}
        got = probe(folder, typed, "float" if dtype == torch.float32 else "double", saved)
        states = again.text_encoder(typed["ids"]).last_hidden_state
        terms = again.unet(typed["noised"], typed["times"], encoder_hidden_states=states).sample * typed["weights"]
        loss = terms.sum()  # of any size, because peft's weights differ from run to run
        again.unet.zero_grad(), again.text_encoder.zero_grad()
        loss.backward()
        off = float((got["loss"] - loss).abs() / terms.abs().sum())
        assert off <= limit, (dtype, off, limit)
        print("loss with adapters", dtype, "agrees within", off)
        wanted = {(part + name).replace(".default.weight", ""): x.grad for part, model in parts.items()
                  for name, x in model.named_parameters() if "lora_" in name}
        assert len(wanted) == len(got) - 1 and any("text_encoder" in name for name in wanted), (len(wanted), len(got))
        offs = {}
        for name, gradient in wanted.items():
            if name not in got:  # transformers 5 lacks the word in names
                name = name.replace("text_encoder.", "text_encoder.text_model.")
            offs[name] = distance(got[name].reshape(gradient.shape), gradient)
        assert max(offs.values()) <= limit, {name: off for name, off in offs.items() if off > limit}
        print("gradients of", len(offs), "matrices agree within", max(offs.values()))


def control_nets():
    """Compares a UNet with a ControlNet at two odd shapes, whole drawings, and what we write."""
    from PIL import Image
    control = randomly(diffusers.ControlNetModel(
        block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=4,
        conditioning_embedding_out_channels=(8, 16)), 21)
    at = interop.temp_dir / "controlnet"
    control.save_pretrained(at)

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.unet, self.control = whole.unet, control

        def forward(self, noised, times, text, control):
            down, middle = self.control(noised, times, encoder_hidden_states=text, controlnet_cond=control,
                                        conditioning_scale=0.8, return_dict=False)
            return self.unet(noised, times, encoder_hidden_states=text, down_block_additional_residuals=down,
                             mid_block_additional_residual=middle).sample

    torch.manual_seed(22)
    for height, width in ((5, 7), (6, 10)):
        batch = {"noised": torch.randn(2, 4, height, width), "times": torch.tensor([500.0, 20.0]),
                 "text": torch.randn(2, 7, 32), "control": torch.rand(2, 3, 2 * height, 2 * width)}
        in_both(f"controlnet {height} x {width}", folder / "unet", Both(), batch,
                lambda model, typed: {"predicted": model(**typed)}, f"{at}:0.8")

    latents = torch.randn(1, 4, 8, 8)
    save_file({"latents": latents}, interop.temp_dir / "latents.safetensors")
    image = Image.fromarray(np.random.default_rng(5).integers(0, 255, (16, 16, 3), dtype=np.uint8))
    image.save(interop.temp_dir / "control.png")
    # Parts of `whole` have adapters of the comparisons before.
    their = diffusers.StableDiffusionControlNetPipeline.from_pretrained(
        folder, controlnet=control, safety_checker=None, requires_safety_checker=False)
    their.set_progress_bar_config(disable=True)

    def compare(name, net, path):
        their.controlnet = net
        wanted = their("a red circle", image=image, num_inference_steps=5, guidance_scale=3.0, latents=latents.clone(),
                       controlnet_conditioning_scale=0.8, output_type="np").images[0]
        out = interop.temp_dir / "controlled.png"
        interop.colossal("draw", "--from", folder, "--control", f"{path}:0.8", "--control-image",
                         interop.temp_dir / "control.png", "--prompt", "a red circle", "--steps", 5, "--guidance", 3,
                         "--latents", interop.temp_dir / "latents.safetensors", "--to", out)
        off = np.abs(np.asarray(Image.open(out)).astype(int) - (wanted * 255).round()).max()
        assert off <= 1, (name, off)
        print("drawing with", name, "is off by", off)

    compare("a controlnet of diffusers", control, at)
    run, out = interop.temp_dir / "control-run", interop.temp_dir / "control-out"
    interop.colossal("train", interop.source_dir / "examples/controlnet_shapes.toml", f"--run.folder={run}",
                     f"--model.from={folder}", "--data.path=builtin-shapes:16", "--data.held_out=0",
                     "--data.size=16,16", f"--adapter.from={at}", "--training.steps=2", "--training.batch_size=4",
                     "--training.evaluate_every=0", "--optimizer.warmup_steps=0")
    interop.colossal("export", "--from", run, "--adapter-only", "--to", out)
    compare("our controlnet", diffusers.ControlNetModel.from_pretrained(out), run)
    compare("our controlnet as a folder", diffusers.ControlNetModel.from_pretrained(out), out)


def image_prompts():
    """Compares CLIP's encoder of pictures, a UNet with an IP-adapter, whole drawings, and what we write."""
    from PIL import Image
    at, width = interop.temp_dir / "ip", 32
    encoder = randomly(transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8,
        projection_dim=24, hidden_act="gelu")), 31)
    encoder.save_pretrained(at / "image_encoder")
    torch.manual_seed(32)
    in_both("image encoder", at / "image_encoder", encoder, {"images": torch.randn(2, 3, 32, 32)},
            lambda m, b: {"embedding": m(b["images"]).image_embeds})
    sizes = {"image_proj.proj.weight": (4 * width, 24), "image_proj.proj.bias": (4 * width,),
             "image_proj.norm.weight": (width,), "image_proj.norm.bias": (width,)}
    plain = diffusers.UNet2DConditionModel(**UNET)
    for i, name in enumerate(plain.attn_processors):
        if "attn2" in name:
            rows = plain.get_submodule(name.removesuffix(".processor")).to_k.out_features
            sizes |= {f"ip_adapter.{i}.to_{which}_ip.weight": (rows, width) for which in "kv"}
    save_file({name: torch.randn(size) * 0.3 + (name == "image_proj.norm.weight") for name, size in sizes.items()},
              at / "ip-adapter_tiny.safetensors")
    image = Image.fromarray(np.random.default_rng(6).integers(0, 255, (45, 37, 3), dtype=np.uint8))
    image.save(interop.temp_dir / "prompt.png")

    def adapted(path, name):
        their = diffusers.StableDiffusionPipeline.from_pretrained(folder, safety_checker=None)
        their.load_ip_adapter(str(path), subfolder="", weight_name=name)
        their.set_ip_adapter_scale(0.8)
        their.set_progress_bar_config(disable=True)
        return their

    torch.manual_seed(33)
    for height, cells in ((5, 7), (6, 10)):
        batch = {"noised": torch.randn(2, 4, height, cells), "times": torch.tensor([500.0, 20.0]),
                 "text": torch.randn(2, 7, width), "image": torch.randn(2, 24)}
        in_both(f"ip-adapter {height} x {cells}", folder / "unet", adapted(at, "ip-adapter_tiny.safetensors").unet,
                batch, lambda m, b: {"predicted": m(
                    b["noised"], b["times"], encoder_hidden_states=b["text"],
                    added_cond_kwargs={"image_embeds": [b["image"][:, None]]}).sample}, f"{at}:0.8")
    latents = torch.randn(1, 4, 8, 8)
    save_file({"latents": latents}, interop.temp_dir / "latents.safetensors")

    def compare(name, their, path):
        wanted = their("a red circle", ip_adapter_image=image, num_inference_steps=5, guidance_scale=3.0,
                       latents=latents.clone(), output_type="np").images[0]
        out = interop.temp_dir / "prompted.png"
        interop.colossal("draw", "--from", folder, "--ip", f"{path}:0.8", "--ip-image",
                         interop.temp_dir / "prompt.png", "--prompt", "a red circle", "--steps", 5, "--guidance", 3,
                         "--latents", interop.temp_dir / "latents.safetensors", "--to", out)
        off = np.abs(np.asarray(Image.open(out)).astype(int) - (wanted * 255).round()).max()
        assert off <= 1, (name, off)
        print("drawing with", name, "is off by", off)

    compare("an ip-adapter", adapted(at, "ip-adapter_tiny.safetensors"), at)
    run, out = interop.temp_dir / "ip-run", interop.temp_dir / "ip-out"
    interop.colossal("train", interop.source_dir / "examples/controlnet_shapes.toml", "--adapter.kind=ip-adapter",
                     f"--run.folder={run}", f"--model.from={folder}", "--data.path=builtin-shapes:16",
                     "--data.held_out=0", "--data.size=16,16", f"--adapter.from={at}", "--training.steps=2",
                     "--training.batch_size=4", "--training.evaluate_every=0", "--optimizer.warmup_steps=0")
    interop.colossal("export", "--from", run, "--adapter-only", "--to", out)
    compare("our ip-adapter", adapted(out, "ip-adapter.safetensors"), run)


sampler_steps.compare()
parts()
clips()
clips_of_open_sora()
joint_transformers()
makers_sd3()
makers_flux()
drawings()
large_drawings()
written_back()
from_pictures()
adapters()
gradients()
control_nets()
image_prompts()
