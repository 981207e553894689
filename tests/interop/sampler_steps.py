"""Compares samplers with the step functions of diffusers: each sampler with each spacing and target, with and without
Karras' deviations and zero terminal SNR, on tables of fp64. `diffusers_interop.py` calls compare(), because only that
script imports diffusers."""

import itertools
import os
import subprocess

import interop

np, torch, diffusers = interop.need("numpy", "torch", "diffusers")

TARGETS = {"epsilon": "epsilon", "v": "v_prediction", "sample": "sample"}
KINDS = {
    "ddpm": (diffusers.DDPMScheduler, {"clip_sample": False}),
    "ddim": (diffusers.DDIMScheduler, {"clip_sample": False, "set_alpha_to_one": False}),
    "pndm": (diffusers.PNDMScheduler, {"skip_prk_steps": True, "set_alpha_to_one": False}),
    "euler": (diffusers.EulerDiscreteScheduler, {}),
    "euler-ancestral": (diffusers.EulerAncestralDiscreteScheduler, {}),
    "heun": (diffusers.HeunDiscreteScheduler, {}),
    "dpm++2m": (diffusers.DPMSolverMultistepScheduler, {}),
    "dpm++2m-sde": (diffusers.DPMSolverMultistepScheduler, {"algorithm_type": "sde-dpmsolver++"}),
    "unipc": (diffusers.UniPCMultistepScheduler, {}),
}
WITHOUT_SIGMAS = {"ddpm", "ddim", "pndm", "euler-ancestral"}  # these have no Karras' deviations
WITHOUT_ZERO_SNR = {"pndm", "heun"}
NOT_THERE = {("pndm", "sample"), ("euler-ancestral", "sample")}  # diffusers has no such step


class Wide:
    """A module whose float32 is float64."""

    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        return getattr(self.module, "float64" if name == "float32" else name)


class Noise:
    """What diffusers draws in place of random numbers: cos(.7 i + j) in evaluation j of the model."""

    def __init__(self):
        self.evaluation = 0

    def __call__(self, shape, **_):
        return torch.cos(0.7 * torch.arange(4, dtype=torch.float64) + self.evaluation).view(shape)


def theirs(scheduler, steps, noise):
    """Returns the four numbers that a scheduler draws."""
    scheduler.set_timesteps(steps)
    sample = torch.sin(0.3 * torch.arange(4, dtype=torch.float64) + 0.1).view(1, 1, 2, 2) * scheduler.init_noise_sigma
    for noise.evaluation, time in enumerate(scheduler.timesteps):
        output = 0.5 * scheduler.scale_model_input(sample, time) + 0.1 + 0.0002 * float(time)
        sample = scheduler.step(output, time, sample).prev_sample
    return sample.flatten().tolist()


def combinations():
    for one in itertools.product(KINDS, ("leading", "trailing", "linspace"), TARGETS, (0, 1), (5, 20), (0, 1)):
        sampler, spacing, target, karras, _, zero_snr = one
        if (sampler, target) in NOT_THERE or (karras and sampler in WITHOUT_SIGMAS):
            continue
        if zero_snr and (target == "epsilon" or spacing != "trailing" or sampler in WITHOUT_ZERO_SNR):
            continue
        yield one


def compare():
    noise = Noise()
    changed = []  # (module, name, value) of what diffusers computes in fp32
    for kind, _ in KINDS.values():
        module = __import__(kind.__module__, fromlist=["torch"])
        for name, value in (("np", Wide(np)), ("torch", Wide(torch)), ("randn_tensor", noise)):
            if hasattr(module, name):
                changed.append((module, name, getattr(module, name)))
                setattr(module, name, value)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    rows = list(combinations())
    lines = "".join(f"{a} {b} {c} {d} {e} {f} {int(a != 'ddpm')} {int(a == 'ddpm')}\n" for a, b, c, d, e, f in rows)
    done = subprocess.run([os.environ["COLOSSAL_SAMPLER_PROBE"]], input=lines, capture_output=True, text=True,
                          timeout=60, check=True)
    worst = 0
    for row, line in zip(rows, done.stdout.splitlines(), strict=True):
        sampler, spacing, target, karras, steps, zero_snr = row
        kind, own = KINDS[sampler]
        keys = dict(own, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", timestep_spacing=spacing,
                    prediction_type=TARGETS[target], steps_offset=int(sampler != "ddpm"))
        keys |= {"use_karras_sigmas": True} if karras else {}
        keys |= {"rescale_betas_zero_snr": True} if zero_snr else {}
        wanted = theirs(kind(**keys), steps, noise)
        off = max(abs(float(a) - b) / max(1, abs(b)) for a, b in zip(line.split(), wanted, strict=True))
        assert off <= 1e-9, (row, line, wanted)
        worst = max(worst, off)
    torch.set_default_dtype(default)
    for module, name, value in changed:
        setattr(module, name, value)
    print(len(rows), "samplers with spacings and targets agree within", worst)
