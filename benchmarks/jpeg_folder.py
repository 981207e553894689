"""A folder of JPEGs made into batches for a ViT (224 x 224, normalised floats): ours beside torchvision's loader, in
one run.

    VENV/bin/python benchmarks/jpeg_folder.py [--folder FOLDER] [--mode train|evaluate] [--threads 2] [--batch 64]
        [--rounds 3] [--seconds 4]

Without --folder 512 pictures of 500 x 375 are made (noise of several sizes, quality 90, colour at half the size: about
as large as photographs are). `train` takes parts of 8 % to 100 % of the area, 3/4 to 4/3 as wide as high, mirrored
every second time: ours with `augment`, theirs RandomResizedCrop and RandomHorizontalFlip; `evaluate` the middle square
of 7/8 of the shorter side: theirs Resize(256) and CenterCrop(224). Both then normalise. Theirs is ImageFolder and a
DataLoader with as many worker processes as ours has threads, whose first batches do not count, as ours do not. Each
figure is the best of the rounds, which alternate. Needs ./colossal.sh build, and torchvision with its Pillow for the
Python that runs this.
"""

import argparse
import pathlib
import subprocess
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = SOURCE / "build/release/benchmarks/colossal_picture_bench"


def make_pictures(folder, count=512, width=500, height=375):
    import numpy
    from PIL import Image
    random = numpy.random.default_rng(3)
    for i in range(count):
        picture = numpy.full((height, width, 3), 110.0)
        for size, strength in ((4, 60), (16, 40), (64, 25), (200, 14)):
            noise = random.integers(0, 256, (size * height // width + 1, size, 3), dtype=numpy.uint8)
            noise = Image.fromarray(noise).resize((width, height), Image.BICUBIC)
            picture += (numpy.asarray(noise, dtype=float) - 128) * strength / 64
        into = folder / f"class{i % 8}"
        into.mkdir(exist_ok=True)
        Image.fromarray(picture.clip(0, 255).astype(numpy.uint8)).save(into / f"{i}.jpg", quality=90)


def torchvision_loader(folder, options):
    import torch
    try:
        import torchvision
    except RuntimeError:  # a wheel for another torch, which cannot load its operators: none is used here
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import datasets, transforms
    parts = ([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()] if options.mode == "train"
             else [transforms.Resize(256), transforms.CenterCrop(224)])
    normalise = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    data = datasets.ImageFolder(str(folder), transforms.Compose([*parts, transforms.ToTensor(), normalise]))

    class Endless(torch.utils.data.Sampler):
        def __iter__(self):
            while True:
                yield from torch.randperm(len(data)).tolist()

    # One thread in each worker, as DataLoader sets it: ours has as many threads in all as theirs has workers.
    return torch.utils.data.DataLoader(data, batch_size=options.batch, sampler=Endless(), num_workers=options.threads)


def theirs(folder, options):
    batches = iter(torchvision_loader(folder, options))
    for _ in range(4 + 2 * options.threads):
        next(batches)
    began, made = time.perf_counter(), 0
    while time.perf_counter() - began < options.seconds:
        made += len(next(batches)[1])
    return made / (time.perf_counter() - began)


def ours(folder, options):
    command = [PROGRAM, folder, options.mode, str(options.threads), str(options.batch), str(options.seconds)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--mode", choices=("train", "evaluate"), default="train")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or pathlib.Path(made)
        if not options.folder:
            make_pictures(folder)
        sizes = [file.stat().st_size for file in folder.rglob("*.jp*g")]
        rounds = [(ours(folder, options), theirs(folder, options)) for _ in range(options.rounds)]
    best, peer = max(r[0] for r in rounds), max(r[1] for r in rounds)
    print(f"{options.mode}: {len(sizes)} pictures of {sum(sizes) / len(sizes) / 1e3:.0f} KB, "
          f"{options.threads} threads, batches of {options.batch}")
    print("rounds, pictures a second (ours, torchvision):", "; ".join(f"{a:.0f}, {b:.0f}" for a, b in rounds))
    print(f"best: ours {best:.0f}, torchvision {peer:.0f}: {best / peer:.2f}x")


if __name__ == "__main__":
    main()
