#include "colossal/ops/peak.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/clock.h"
#include "colossal/ops/matmul.h"

namespace colossal::ops {

double matmul_peak(at::ScalarType dtype, at::Device device, double seconds) {
  constexpr int64_t kSide = 1024;
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({kSide, kSide}, at::TensorOptions(device).dtype(dtype)), b = at::ones_like(a);
  auto once = [&] {
    const Stopwatch watch;
    matmul_nt(a, b).select(0, 0).select(0, 0).item();  // reading an element waits for an accelerator
    return watch.seconds();
  };
  once();
  double best = once();
  for (const Stopwatch all; all.seconds() < seconds;) best = std::min(best, once());
  return 2.0 * kSide * kSide * kSide / best;
}

}  // namespace colossal::ops
