"""Models of pictures and clips beside diffusers: times and resident memory of both sides, in turns, in one run.

    .venv/bin/python benchmarks/beside_diffusers.py unet-step      # fp32 step of SD 1.5's UNet, 512 px, batch 1
    .venv/bin/python benchmarks/beside_diffusers.py dit-step       # fp32 step of DiT-S/2, 256 px, batch 8
    .venv/bin/python benchmarks/beside_diffusers.py vae-decode     # 1024 px
    .venv/bin/python benchmarks/beside_diffusers.py drawing        # 25 steps with guidance; --size 256, --dtype bf16
    .venv/bin/python benchmarks/beside_diffusers.py latents        # of 1,000 pictures, and text states; --size 64
    .venv/bin/python benchmarks/beside_diffusers.py step-memory    # the step of unet-step with weights on disk
    .venv/bin/python benchmarks/beside_diffusers.py drawing-memory # 512 px, 2 steps, weights streamed from disk
    .venv/bin/python benchmarks/beside_diffusers.py flux           # fp32 step of 1 + 2 blocks, 1,024 patches, 256 words
    .venv/bin/python benchmarks/beside_diffusers.py video          # clips of 17 frames of an MP4 file, beside PyAV

Weights are random and of the published sizes; --folder keeps the pipeline (4.3 GB) and all else that is written.
--tokenizer names a folder with CLIP's tokenizer. diffusers and transformers work eagerly with all cores and in the same
dtype, which is fp32 unless a drawing has --dtype. A time is a side's best round; of a training step, the median of its
steps without the first. `mb` is the largest resident memory of the process. The ratio is ours over the peer's speed, or
the peer's memory over ours.
The step of flux is that of colossal_denoiser_bench, whose inputs are as random as the peer's; both models have the same
number of parameters. In video both sides decode for --seconds with one thread each, and `seconds` are those of a clip.
Needs ./colossal.sh build, and diffusers, transformers and pillow in the environment that runs the script; video needs
numpy and PyAV (the package av) alone.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("COLOSSAL_BINARY", ROOT / "build/release/colossal"))
DENOISER_BENCH = PROGRAM.parent / "benchmarks/colossal_denoiser_bench"
VIDEO_BENCH = PROGRAM.parent / "benchmarks/colossal_video_bench"
CLIP_FRAMES, CLIP_FPS, VIDEO_FRAMES = 17, 24, 17 * 12
DRAWING_STEPS = {"drawing": 25, "drawing-memory": 2}
PROMPT = "a photograph of an astronaut riding a horse"
DIT = dict(num_attention_heads=6, attention_head_dim=64, in_channels=4, num_layers=12, sample_size=32, patch_size=2,
           num_embeds_ada_norm=10, norm_type="ada_norm_zero")
FLUX = dict(patch_size=1, in_channels=64, num_layers=1, num_single_layers=2, attention_head_dim=128,
            num_attention_heads=8, joint_attention_dim=4096, pooled_projection_dim=768, guidance_embeds=True)


# --- models of the published sizes with random weights

def unet():
    import diffusers
    return diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8)


def make_pipeline(folder, tokenizer):
    """Writes Stable Diffusion 1.5's pipeline once."""
    if (folder / "model_index.json").exists():
        return
    import diffusers
    import torch
    import transformers
    torch.manual_seed(0)
    sides = (128, 256, 512, 512)
    vae = diffusers.AutoencoderKL(block_out_channels=sides, down_block_types=["DownEncoderBlock2D"] * 4,
                                  up_block_types=["UpDecoderBlock2D"] * 4, layers_per_block=2, latent_channels=4,
                                  sample_size=512)
    text = transformers.CLIPTextModel(transformers.CLIPTextConfig(
        vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12))
    scheduler = diffusers.DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                                        clip_sample=False, set_alpha_to_one=False, steps_offset=1)
    diffusers.StableDiffusionPipeline(
        vae=vae, text_encoder=text, tokenizer=transformers.CLIPTokenizer.from_pretrained(tokenizer), unet=unet(),
        scheduler=scheduler, safety_checker=None, feature_extractor=None).save_pretrained(folder)


def make_pictures(folder, count, side):
    """Writes pictures with captions once."""
    if folder.exists():
        return
    import numpy
    import PIL.Image
    folder.mkdir(parents=True)
    numbers = numpy.random.default_rng(0)
    for i in range(count):
        cells = numbers.integers(0, 256, (8, 8, 3), dtype=numpy.uint8)
        PIL.Image.fromarray(cells).resize((side, side)).save(folder / f"{i:04}.png")
        (folder / f"{i:04}.txt").write_text(f"picture number {i % 100}")


def make_video(path):
    """Writes moving and noisy pictures as an H.264 file once."""
    if path.exists():
        return
    import av
    import numpy
    numbers = numpy.random.default_rng(0)
    wide = numbers.integers(0, 256, (30, 106, 3), dtype=numpy.uint8).repeat(8, 0).repeat(8, 1)  # 848 x 240
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=CLIP_FPS, options={"g": "24", "crf": "23"})
        stream.width, stream.height, stream.pix_fmt = 424, 240, "yuv420p"
        for i in range(VIDEO_FRAMES):
            noise = numbers.integers(0, 16, (240, 424, 3), dtype=numpy.uint8)
            pixels = wide[:, 2 * i % 424:2 * i % 424 + 424] // 16 * 15 + noise
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode())


# --- sides

def timed(command):
    """Runs a command. Returns what it prints, its seconds and its largest resident memory."""
    start = time.perf_counter()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout, seconds


def measured(command):
    """Runs a command in a process of its own, whose children tell the largest resident memory."""
    output, _ = timed([sys.executable, __file__, "--measure", *command])
    return json.loads(output.strip().splitlines()[-1])


def measure(command):
    output, seconds = timed(command)
    print(json.dumps({"output": output, "s": seconds,
                      "mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024}))


def our_step(work, config, keys, steps):
    run = work / "run"
    shutil.rmtree(run, ignore_errors=True)
    keys = {"run.folder": run, "data.held_out": 0, "training.ema": 0, "training.sample_prompt": "",
            "training.evaluate_every": 0, "optimizer.warmup_steps": 0, "optimizer.schedule": "constant",
            "training.steps": steps, **keys}
    flags = [f"--{key}={value}" for key, value in keys.items()]
    result = measured([PROGRAM, "train", ROOT / "examples" / config, *flags])
    lines = [json.loads(line) for line in open(run / "metrics.jsonl")]
    return {"s": statistics.median(line["seconds"] for line in lines[1:]), "mb": result["mb"],
            "losses": [line["loss"] for line in lines]}


UNET_KEYS = {"model.name": "sd-1.5", "data.path": "builtin-shapes:8", "data.size": "512,512", "training.batch_size": 1,
             "data.mirror": "false"}
TIERS = {"memory.recompute": "block", "memory.device": "700MiB", "memory.host": "500MiB"}
DIT_KEYS = {"model.name": "dit-s-2", "model.classes": 10, "data.path": "builtin-shapes:24", "data.size": "256,256",
            "training.batch_size": 8, "data.mirror": "false", "diffusion.target": "epsilon"}


def ours(row, o):
    pipeline, work = o.folder / "pipeline", o.folder / "ours"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    if row == "unet-step":
        return our_step(work, "sd_finetune.toml", {**UNET_KEYS, "training.save_every": 0}, o.steps)
    if row == "step-memory":
        (work / "disk").mkdir()
        return our_step(work, "sd_finetune.toml", {**UNET_KEYS, **TIERS, "memory.disk": work / "disk"}, 2)
    if row == "dit-step":
        return our_step(work, "dit_shapes.toml", {**DIT_KEYS, "vae.from": ""}, o.steps)
    if row == "flux":
        result = measured([DENOISER_BENCH, "flux", o.steps])
        return {**json.loads(result["output"]), "mb": result["mb"]}
    if row == "video":
        result = measured([VIDEO_BENCH, o.folder / "video.mp4", CLIP_FRAMES, CLIP_FPS, o.seconds])
        return {"s": CLIP_FRAMES / float(result["output"]), "mb": result["mb"]}
    if row == "vae-decode":
        result = measured([PROGRAM, "draw", "--from", pipeline, "--decode", o.folder / "latents.safetensors", "--to",
                           work / "out.png", "--json"])
        return {"s": json.loads(result["output"].splitlines()[-1])["seconds"], "mb": result["mb"]}
    if row == "latents":
        # Ranks divide the pictures, and small products gain more from that than from two threads.
        return measured([PROGRAM, "run", "-n", o.ranks, "latents", "--from", pipeline,
                         f"--data.path={o.folder / 'pictures'}", f"--data.size={o.size},{o.size}", "--to",
                         work / "cache"])
    command = [PROGRAM, "draw", "--from", pipeline, "--prompt", PROMPT, "--steps", DRAWING_STEPS[row], "--size",
               f"{o.size}x{o.size}", "--precision", o.dtype, "--to", work / "out.png", "--json"]
    if row == "drawing-memory":
        (work / "disk").mkdir()
        command += ["--memory.disk", work / "disk", "--memory.host", "400MiB"]
    result = measured(command)
    return {"s": json.loads(result["output"].splitlines()[-1])["seconds"], "mb": result["mb"]}


def peer(row, o):
    words = [sys.executable, __file__, row, "--folder", o.folder, "--size", o.size, "--steps", o.steps]
    words += ["--dtype", o.dtype, "--seconds", o.seconds, "--peer"]
    result = measured(words)
    return {**json.loads(result["output"].strip().splitlines()[-1]), "mb": result["mb"]}


def peer_step(model, inputs, steps):
    import torch
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        sample, target, more = inputs()
        loss = torch.nn.functional.mse_loss(model(sample, **more).sample, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def peer_video(path, least):
    """Decodes clips one after the other, each after a seek in the file that is opened again. Returns seconds a clip."""
    import av
    clips, start, sums = 0, 0, 0

    def decode(start):
        total, made = 0, 0
        with av.open(str(path)) as file:
            stream = file.streams.video[0]
            stream.thread_type, stream.codec_context.thread_count = "NONE", 1
            file.seek(round(start / CLIP_FPS / stream.time_base), stream=stream)
            for frame in file.decode(stream):
                if frame.time < start / CLIP_FPS - 1e-6:
                    continue
                total += int(frame.to_ndarray(format="rgb24")[0, 0, 0])
                made += 1
                if made == CLIP_FRAMES:
                    return total
        sys.exit(f"{path} must have {CLIP_FRAMES} frames after frame {start}: got {made}")

    decode(0)
    began = time.perf_counter()
    while time.perf_counter() - began < least:
        sums += decode(start)
        clips, start = clips + 1, (start + CLIP_FRAMES) % VIDEO_FRAMES
    return (time.perf_counter() - began) / clips


def peer_flux(o):
    import diffusers
    import torch
    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel(**FLUX)
    rows = torch.arange(32).repeat_interleave(32)
    places = torch.stack([torch.zeros(1024), rows, torch.arange(1024) % 32], 1)
    more = {"timestep": torch.full((1,), 0.5), "guidance": torch.full((1,), 3.5), "img_ids": places,
            "txt_ids": torch.zeros(256, 3), "encoder_hidden_states": torch.randn(1, 256, 4096),
            "pooled_projections": torch.randn(1, 768)}
    sample, target = torch.randn(1, 1024, 64), torch.randn(1, 1024, 64)
    return {"s": peer_step(model, lambda: (sample, target, more), o.steps),
            "parameters": sum(p.numel() for p in model.parameters())}


def peer_latents(o):
    """Encodes pictures eight at a time, and each caption once."""
    import diffusers
    import numpy
    import PIL.Image
    import torch
    import transformers
    pipeline = o.folder / "pipeline"
    vae = diffusers.AutoencoderKL.from_pretrained(pipeline, subfolder="vae")
    text = transformers.CLIPTextModel.from_pretrained(pipeline, subfolder="text_encoder")
    tokenizer = transformers.CLIPTokenizer.from_pretrained(pipeline, subfolder="tokenizer")
    kept, states = [], {}
    files = sorted((o.folder / "pictures").glob("*.png"))
    with torch.no_grad():
        for first in range(0, len(files), 8):
            pixels = numpy.stack([numpy.asarray(PIL.Image.open(name)) for name in files[first:first + 8]])
            pixels = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1
            kept.append(vae.encode(pixels).latent_dist.parameters)
        for name in files:
            caption = name.with_suffix(".txt").read_text()
            if caption not in states:
                ids = tokenizer(caption, padding="max_length", truncation=True, return_tensors="pt").input_ids
                states[caption] = text(ids).last_hidden_state
    torch.save([torch.cat(kept), states], o.folder / "peer.pt")


def peer_here(row, o):
    """One round of the peer, in a process of its own. Prints its seconds."""
    if row == "video":
        print(json.dumps({"s": peer_video(o.folder / "video.mp4", o.seconds)}))
        return
    if row == "flux":
        print(json.dumps(peer_flux(o)))
        return
    import diffusers
    import torch
    torch.manual_seed(0)
    pipeline = o.folder / "pipeline"
    start = time.perf_counter()
    if row in ("unet-step", "step-memory"):
        seconds = peer_step(unet(), lambda: (torch.randn(1, 4, 64, 64), torch.randn(1, 4, 64, 64),
                                             {"timestep": torch.randint(0, 1000, (1,)),
                                              "encoder_hidden_states": torch.randn(1, 77, 768)}),
                            o.steps if row == "unet-step" else 2)
    elif row == "dit-step":
        seconds = peer_step(diffusers.DiTTransformer2DModel(**DIT),
                            lambda: (torch.randn(8, 4, 32, 32), torch.randn(8, 4, 32, 32),
                                     {"timestep": torch.randint(0, 1000, (8,)),
                                      "class_labels": torch.randint(0, 10, (8,))}), o.steps)
    elif row == "latents":
        peer_latents(o)
        seconds = time.perf_counter() - start
    elif row == "vae-decode":
        import safetensors.torch
        vae = diffusers.AutoencoderKL.from_pretrained(pipeline, subfolder="vae")
        latents = safetensors.torch.load_file(o.folder / "latents.safetensors")["latents"]
        start = time.perf_counter()
        with torch.no_grad():
            vae.decode(latents / vae.config.scaling_factor)
        seconds = time.perf_counter() - start
    else:
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[o.dtype]
        model = diffusers.StableDiffusionPipeline.from_pretrained(pipeline, torch_dtype=dtype)
        model.set_progress_bar_config(disable=True)
        start = time.perf_counter()
        model(PROMPT, num_inference_steps=DRAWING_STEPS[row], guidance_scale=7.5, height=o.size, width=o.size)
        seconds = time.perf_counter() - start
    print(json.dumps({"s": seconds}))


def prepare(row, o):
    if row in ("vae-decode", "latents", "drawing", "drawing-memory"):
        make_pipeline(o.folder / "pipeline", o.tokenizer)
    if row == "latents":
        make_pictures(o.folder / "pictures", 1000, o.size)
    if row == "video":
        make_video(o.folder / "video.mp4")
    if row == "vae-decode" and not (o.folder / "latents.safetensors").exists():
        import safetensors.torch
        import torch
        safetensors.torch.save_file({"latents": torch.randn(1, 4, 128, 128)}, o.folder / "latents.safetensors")


SIZES = {"drawing": 256, "latents": 64}
ROWS = ("unet-step", "dit-step", "vae-decode", "drawing", "latents", "step-memory", "drawing-memory", "flux", "video")


def main():
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--ranks", type=int, default=2, help="processes of ours, for latents")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="of a training step's round")
    parser.add_argument("--seconds", type=float, default=4, help="of a round of video")
    parser.add_argument("--size", type=int, default=0, help="side of drawn or encoded pictures, in pixels")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of a drawing")
    parser.add_argument("--folder", type=pathlib.Path, help="default: a temporary one")
    parser.add_argument("--tokenizer", default=str(ROOT.parent / "shared/data/tokenizers/hf/clip"))
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.dtype != "fp32" and not o.row.startswith("drawing"):
        parser.error(f"--dtype is for drawings: got the row {o.row}")
    o.size = o.size or SIZES.get(o.row, 512)
    if o.peer:
        peer_here(o.row, o)
        return
    with tempfile.TemporaryDirectory() as temporary:
        o.folder = (o.folder or pathlib.Path(temporary)).resolve()
        o.folder.mkdir(parents=True, exist_ok=True)
        prepare(o.row, o)
        other = "pyav" if o.row == "video" else "diffusers"
        sides = {"colossal": ours, other: peer}
        results = {name: [] for name in sides}
        for turn in range(o.rounds):
            for name in list(sides) if turn % 2 == 0 else reversed(sides):
                results[name].append(sides[name](o.row, o))
                figures = {key: results[name][-1][key] for key in ("s", "mb")}
                print(f"round {turn + 1} of {o.rounds}, {name}: {figures}", file=sys.stderr, flush=True)
    parameters = {r["parameters"] for rounds in results.values() for r in rounds if "parameters" in r}
    if len(parameters) > 1:
        sys.exit(f"both models must have the same number of parameters: got {sorted(parameters)}")
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               "unknown")
    size = f", {o.size} px" if o.row in SIZES or o.row.startswith("drawing") else ""
    print(f"{o.row}{size}, {o.dtype}, {cpu}, {os.cpu_count()} cores")
    best = {name: {key: min(r[key] for r in rounds) for key in ("s", "mb")} for name, rounds in results.items()}
    print(f"{'':12}{'seconds':>10}{'mb':>8}{'speed':>8}{'memory':>8}")
    for name, r in best.items():
        ratios = ""
        if name == "colossal":
            ratios = f"{best[other]['s'] / r['s']:8.2f}{best[other]['mb'] / r['mb']:8.2f}"
        print(f"{name:12}{r['s']:10.3f}{r['mb']:8.0f}{ratios}")


if __name__ == "__main__":
    main()
