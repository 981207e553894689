// Update rules over flat fp32 buffers against the memory bandwidth of this machine and against torch's fused optimizers, in one run.
//
// Usage: colossal_optimizer_bench [threads] [rounds] [millions of elements]. Everything runs in turns, so that all see the same machine; best times.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "colossal/ops/cpu.h"
#include "colossal/ops/update.h"

namespace ops = colossal::ops;

namespace {

struct Candidate {
  std::string name;
  double bytes;  ///< of memory traffic an element
  std::function<void()> work;
  double seconds = 1e30;
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) at::set_num_threads(std::atoi(argv[1]));
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const int64_t n = (argc > 3 ? std::atoll(argv[3]) : 124) * 1'000'000;
  at::Tensor p = at::randn({n}), g = at::randn({n}), m = at::zeros({n}), v = at::zeros({n}), step = at::ones({});
  at::Tensor narrow = g.to(at::kBFloat16), copy = at::empty({n}, at::kBFloat16);
  const ops::AdamStep adam{.learning_rate = 1e-4, .weight_decay = 0.01};
  std::vector<Candidate> candidates{
      // a = b + s c: 12 bytes as STREAM counts, 16 with the line of `a` that a processor reads before it is written
      {"triad (torch add)", 16, [&] { at::add_out(m, p, g, 0.5); }},
      {"AdamW, torch fused", 28, [&] { at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, 1e-4, 0.9, 0.999, 0.01, 1e-8, false, false); }},
      {"AdamW", 28, [&] { ops::adam_({p, g}, m, v, adam); }},
      {"AdamW, bf16 gradients and copy", 30, [&] { ops::adam_({p, narrow, copy}, m, v, adam); }},  // the copy's line is read, too
      {"SGD with momentum, torch fused", 20, [&] { at::_fused_sgd_({p}, {g}, {m}, 0.01, 0.9, 1e-4, 0.0, false, false, false); }},
      {"SGD with momentum", 20, [&] { ops::sgd_({p, g}, m, {.learning_rate = 1e-4, .momentum = 0.9, .weight_decay = 0.01}); }},
      {"Lion", 20, [&] { ops::lion_({p, g}, m, {}); }},
  };
  for (int round = 0; round <= rounds; ++round)
    for (Candidate& candidate : candidates) {
      m.fill_(1e-3), v.fill_(1e-3);  // never subnormal
      const double seconds = seconds_of(candidate.work);
      if (round > 0) candidate.seconds = std::min(candidate.seconds, seconds);  // the first round touches memory
    }
  const auto bandwidth = [n](const Candidate& c) { return c.bytes * static_cast<double>(n) / c.seconds * 1e-9; };
  std::printf("%lld elements, fp32, %d threads, %s, best of %d\n", static_cast<long long>(n), at::get_num_threads(), ops::name(ops::instruction_set()).data(), rounds);
  std::printf("%-34s %9s %9s %8s %9s\n", "", "bytes/el", "ms", "GB/s", "of triad");
  for (const Candidate& c : candidates)
    std::printf("%-34s %9.0f %9.2f %8.2f %8.1f%%\n", c.name.c_str(), c.bytes, c.seconds * 1e3, bandwidth(c), 100 * bandwidth(c) / bandwidth(candidates[0]));
}
