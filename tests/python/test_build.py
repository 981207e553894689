"""colossal.version and colossal.build_info: the same facts as those of the command."""

import torch

from colossal import program
from colossal.build import build_info, version


def test_versions_are_those_of_the_program():
    assert program.run(["--version"]) == f"colossal {version()}\n"


def test_facts_are_those_of_info():
    shown = program.run(["info", "--no-measure"])
    facts = build_info()
    assert facts.keys() >= {"version", "revision", "kernels", "cuda", "nccl", "cuda_kernels"}
    assert facts["torch"] == torch.__version__
    assert facts["built_for_torch"].split(".")[:2] == torch.__version__.split(".")[:2]
    for name in ("version", "built_for_torch", "kernels", "packed_weights"):
        assert facts[name] in shown
