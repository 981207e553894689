#include "colossal/comm/launch/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "colossal/base/error.h"

namespace colossal::comm {

at::Device choose_device(const std::string& name, int local_rank) {
  const bool has_cuda = at::globalContext().hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
  require(name != "cuda" || has_cuda, "run",
          "device cuda needs a CUDA build of LibTorch and a GPU; use --run.device=cpu");
  if (name == "cpu" || !has_cuda) return at::kCPU;
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(local_rank % at::detail::getCUDAHooks().deviceCount()));
}

}  // namespace colossal::comm
