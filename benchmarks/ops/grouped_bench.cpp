// Products of 64 small experts: hidden 256, 128 features each with gate and up, 4,096 assignments at random, fp32,
// forward and backward. Peers: a loop over the experts with LibTorch's product on all threads, as in PyTorch, and one
// dense product of as many operations.
//
// Usage: colossal_grouped_bench [threads] [rounds]. Prints the best time of each; the three are run alternately.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "colossal/ops/products/grouped_matmul.h"
#include "colossal/ops/products/matmul.h"

namespace ops = colossal::ops;

namespace {

constexpr int64_t kExperts = 64, kHidden = 256, kFfn = 128, kRows = 4096;

/// A linear layer of all experts, with the input and the gradient of the output.
struct Layer {
  at::Tensor x, w, dy;

  Layer(int64_t in, int64_t out)
      : x(at::randn({kRows, in})), w(at::randn({kExperts, out, in})), dy(at::randn({kRows, out})) {}
};

ops::GroupEnds random_ends() {
  std::mt19937 random(1);
  ops::GroupEnds ends(kExperts, 0);
  for (int64_t row = 0; row < kRows; ++row) ++ends[random() % kExperts];
  for (size_t expert = 1; expert < ends.size(); ++expert) ends[expert] += ends[expert - 1];
  return ends;
}

void grouped(const Layer& layer, const ops::GroupEnds& ends) {
  ops::grouped_nt(layer.x, layer.w, ends);
  ops::grouped_nn(layer.dy, layer.w, ends);
  ops::grouped_tn(layer.dy, layer.x, ends);
}

void looped(const Layer& layer, const ops::GroupEnds& ends) {
  at::Tensor y = at::empty_like(layer.dy), dx = at::empty_like(layer.x), dw = at::empty_like(layer.w);
  int64_t from = 0;
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    const int64_t rows = ends[static_cast<size_t>(expert)] - from;
    const at::Tensor x = layer.x.narrow(0, from, rows), dy = layer.dy.narrow(0, from, rows);
    at::Tensor y_rows = y.narrow(0, from, rows), dx_rows = dx.narrow(0, from, rows), gradient = dw[expert];
    at::mm_out(y_rows, x, layer.w[expert].t());
    at::mm_out(dx_rows, dy, layer.w[expert]);
    at::mm_out(gradient, dy.t(), x);
    from += rows;
  }
}

void dense(const Layer& layer, const ops::GroupEnds&) {
  const at::Tensor w = layer.w[0];
  ops::matmul_nt(layer.x, w);
  ops::matmul_nn(layer.dy, w);
  ops::matmul_tn(layer.dy, layer.x);
}

}  // namespace

int main(int argc, char** argv) {
  const at::NoGradGuard no_grad;
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 50;
  const ops::GroupEnds ends = random_ends();
  const std::array layers{Layer(kHidden, 2 * kFfn), Layer(kFfn, kHidden)};
  struct Way {
    const char* name;
    void (*run)(const Layer&, const ops::GroupEnds&);
    double best;
  };
  std::array ways{Way{"grouped", grouped, 1e30}, Way{"loop over experts", looped, 1e30}, Way{"dense", dense, 1e30}};
  for (int round = 0; round <= rounds; ++round)
    for (Way& way : ways) {
      const auto start = std::chrono::steady_clock::now();
      for (const Layer& layer : layers) way.run(layer, ends);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      if (round > 0) way.best = std::min(way.best, seconds.count());  // the first round warms up
    }
  const double operations = 6.0 * kRows * (kHidden * 2 * kFfn + kFfn * kHidden);
  std::printf("%d threads, %ld experts, %ld rows\n", at::get_num_threads(), static_cast<long>(kExperts),
              static_cast<long>(kRows));
  for (const Way& way : ways)
    std::printf("%-20s %9.3f ms %8.1f GFLOP/s, grouped takes %.2f of its time\n", way.name, way.best * 1e3,
                operations / way.best * 1e-9, ways[0].best / way.best);
  return 0;
}
