#include "colossal/ops/products/peak.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>

#include "colossal/base/clock.h"
#include "colossal/ops/products/matmul.h"

namespace colossal::ops {
namespace {

constexpr int64_t kSide = 1024, kMaxSide = 8192;
constexpr double kLongEnough = 2e-3;  // seconds; the microseconds of a launch are then negligible

struct Product {
  at::Tensor a, b;
  Product(int64_t side, at::ScalarType dtype, at::Device device)
      : a(at::ones({side, side}, at::TensorOptions(device).dtype(dtype))), b(at::ones_like(a)) {}
};

double operations(int64_t side) { return 2.0 * std::pow(static_cast<double>(side), 3); }

double seconds_on_host(const Product& x) {
  const Stopwatch watch;
  matmul_nt(x.a, x.b);
  return watch.seconds();
}

/// Measures by the device's clock, because the host's clock would include the launch and the synchronisation.
double seconds_between_events(const Product& x) {
  const at::Device device = x.a.device();
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  c10::Event before(device.type(), c10::EventFlag::BACKEND_DEFAULT), after(device.type(), before.flag());
  before.record(stream);
  matmul_nt(x.a, x.b);
  after.record(stream);
  after.synchronize();
  return before.elapsedTime(after) / 1e3;
}

}  // namespace

double matmul_peak(at::ScalarType dtype, at::Device device, double seconds) {
  const at::NoGradGuard no_grad;
  const auto once = [&](const Product& x) { return device.is_cpu() ? seconds_on_host(x) : seconds_between_events(x); };
  int64_t side = kSide;
  Product product(side, dtype, device);
  once(product);
  double best = once(product);
  while (!device.is_cpu() && best < kLongEnough && side < kMaxSide) {
    product = Product(side *= 2, dtype, device);
    once(product);
    best = once(product);
  }
  for (const Stopwatch all; all.seconds() < seconds;) best = std::min(best, once(product));
  return operations(side) / best;
}

}  // namespace colossal::ops
