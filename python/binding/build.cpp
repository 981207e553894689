// Facts about this build.
#include <pybind11/stl.h>
#include <torch/version.h>

#include <map>
#include <string>

#include "colossal/base/cuda_build.h"
#include "colossal/base/version.h"
#include "colossal/ops/cpu.h"
#include "parts.h"

namespace colossal::binding {

void bind_build(py::module_& module) {
  module.def("version", &version);
  module.def("build_info", [] {
    const CudaBuild& cuda = cuda_build();
    return std::map<std::string, std::string>{
        {"version", version()},
        {"revision", revision()},
        {"built_for_torch", TORCH_VERSION},
        {"kernels", std::string(ops::name(ops::general_set(ops::best_instruction_set())))},
        {"packed_weights", ops::describe_best()},
        {"cuda", cuda.libtorch.empty() ? "linked" : cuda.libtorch},
        {"nccl", cuda.headers.empty() ? "compiled" : cuda.headers},
        {"cuda_kernels", cuda.kernels.empty() ? "compiled and linked" : cuda.kernels},
    };
  });
}

}  // namespace colossal::binding
