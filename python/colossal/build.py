"""What this package is, and what it was built with."""

from . import _binding


def version() -> str:
    """Returns the version of the library, such as "0.1.0"."""
    return _binding.version()


def build_info() -> dict[str, str]:
    """Returns facts of the build by name.

    `version`, `revision` (the commit, "" = none), `torch` (the version in use), `built_for_torch`, `kernels` and
    `packed_weights` (the instruction sets in use), `cuda`, `nccl` and `cuda_kernels`. The last three are one line each:
    that the part is compiled in, or why not and what to do. A package built for a CPU torch computes on GPUs of a CUDA
    torch of the same minor version, without NCCL and our kernels.
    """
    import torch

    return {**_binding.build_info(), "torch": str(torch.__version__)}
