// Products with frozen weights in NF4 compared with the same products with weights in the dtype of x.
//
// Usage: colossal_nf4_bench [threads] [rounds] [rows]. Prints a row per dtype, matrix and product: the milliseconds
//        with a weight in the dtype, in NF4 and in NF4 with double quantization, and the time of the first divided by
//        the others. They run alternately; each time is the best of all rounds. The matrices are those of a LLaMA of
//        1.1e9 parameters (hidden 2048, ffn 5632), of which x has `rows` rows (default 256).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <vector>

#include "colossal/base/clock.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/products/placed_matrix.h"

namespace ops = colossal::ops;

namespace {

using Work = std::function<void()>;

/// Returns the best milliseconds of each.
std::vector<double> best_of(int rounds, const std::vector<Work>& all) {
  std::vector<double> best(all.size(), 1e9);
  for (int round = 0; round <= rounds; ++round)
    for (size_t i = 0; i < all.size(); ++i) {
      const colossal::Stopwatch watch;
      all[i]();
      if (round > 0) best[i] = std::min(best[i], watch.seconds() * 1e3);  // the first warms up
    }
  return best;
}

void measure(at::ScalarType type, int64_t rows, int64_t outputs, int64_t inputs, int rounds) {
  const at::Tensor weight = at::randn({outputs, inputs}) * 0.02, same = weight.to(type);
  const at::Tensor x = at::randn({rows, inputs}).to(type), dy = at::randn({rows, outputs}).to(type);
  const ops::PlacedMatrix single(outputs, inputs, {{ops::quantize_nf4(weight, {.double_quantized = false})}});
  const ops::PlacedMatrix twice(outputs, inputs, {{ops::quantize_nf4(weight, {.double_quantized = true})}});
  const auto print = [&](const char* product, const std::vector<double>& ms) {
    std::printf("%-9s %5ld %5ld  %-2s %9.2f %9.2f %9.2f %9.2f %9.2f\n", toString(type), static_cast<long>(outputs),
                static_cast<long>(inputs), product, ms[0], ms[1], ms[2], ms[0] / ms[1], ms[0] / ms[2]);
    std::fflush(stdout);
  };
  print("y",
        best_of(rounds, {[&] { ops::matmul_nt(x, same); }, [&] { single.multiply(x); }, [&] { twice.multiply(x); }}));
  print("dx", best_of(rounds, {[&] { ops::matmul_nn(dy, same); }, [&] { single.input_gradient(dy); },
                               [&] { twice.input_gradient(dy); }}));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const at::NoGradGuard no_grad;
    at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 20;
    const int64_t rows = argc > 3 ? std::atoi(argv[3]) : 256;
    std::printf("%ld rows of x, %d threads\n\n", static_cast<long>(rows), at::get_num_threads());
    std::printf("%-9s %5s %5s  %-2s %9s %9s %9s %9s %9s\n", "dtype", "out", "in", "", "plain, ms", "nf4", "double",
                "ratio", "double");
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const auto& [outputs, inputs] :
           {std::pair<int64_t, int64_t>{2048, 2048}, {2560, 2048}, {11264, 2048}, {2048, 5632}})
        measure(type, rows, outputs, inputs, rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "colossal_nf4_bench: %s\n", error.what());
    return 1;
  }
}
