// Products with prepacked weights compared with LibTorch's, at the sizes of all linear layers of a LLaMA of 551 million
// parameters: hidden 1536, 16 layers, ffn 4096, 32000 words.
//
// Usage: colossal_prepacked_bench [threads] [rounds] [kernels] [weights]. `kernels` is portable, avx2, avxvnni, avx512,
//        avx512vnni, avx512bf16, amx or auto, the best ones of this machine. `weights` is one type of the first column;
//        by default all run. Prints a row per type of weights and number of rows of x, from the best time of a pass
//        over all layers: operations and bytes of weights per second, the time of LibTorch divided by ours, and our
//        operations per second divided by those of LibTorch for 2048 x 2048 matrices. LibTorch and ours run
//        alternately. LibTorch multiplies in fp32 (also fp8), in bf16, and for 8 and 4 bits by `_int_mm`, which does
//        not quantize x. GOMP_SPINCOUNT=1000, as `colossal` sets it, keeps LibTorch's threads from spinning while ours
//        need the core.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string_view>
#include <vector>

#include "colossal/ops/cpu.h"
#include "colossal/ops/products/prepacked_kernels.h"
#include "colossal/ops/products/prepacked_matrix.h"

namespace ops = colossal::ops;

namespace {

struct Size {
  int64_t outputs, inputs;
};

std::vector<Size> layers() {
  std::vector<Size> sizes;
  for (int i = 0; i < 16; ++i)
    for (const Size size : {Size{4608, 1536}, {1536, 1536}, {8192, 1536}, {1536, 4096}}) sizes.push_back(size);
  sizes.push_back({32000, 1536});
  return sizes;
}

/// A type of packed weights.
struct Kind {
  const char* name;
  at::ScalarType dtype;  ///< of x
  at::ScalarType peer;   ///< dtype in which LibTorch multiplies
  std::function<ops::PrepackedMatrix(const at::Tensor&)> pack;
};

std::vector<Kind> kinds() {
  const auto plain = [](ops::PackedType type) {
    return [type](const at::Tensor& w) { return ops::PrepackedMatrix::of(w, type); };
  };
  const auto rounded = [](ops::RoundingOptions options) {
    return [options](const at::Tensor& w) { return ops::PrepackedMatrix(ops::round_to_codes(w, options)); };
  };
  return {{"fp32", at::kFloat, at::kFloat, plain(ops::PackedType::Float)},
          {"bf16", at::kBFloat16, at::kBFloat16, plain(ops::PackedType::Bf16)},
          {"fp8", at::kBFloat16, at::kFloat, plain(ops::PackedType::Fp8)},
          {"8 bits", at::kBFloat16, at::kChar, rounded({.bits = 8})},
          {"4 bits", at::kBFloat16, at::kChar, rounded({.bits = 4})},
          {"4 bits, 32", at::kBFloat16, at::kChar, rounded({.bits = 4, .group = 32, .minima = true})}};
}

at::Tensor random(at::IntArrayRef shape, at::ScalarType type) {
  if (type == at::kChar) return at::randint(-127, 128, shape, at::TensorOptions().dtype(type));
  return (at::rand(shape) - 0.5).to(type);
}

at::Tensor multiply_plain(const at::Tensor& x, const at::Tensor& w) {
  return w.scalar_type() == at::kChar ? at::_int_mm(x, w.t()) : at::mm(x, w.t());
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns the operations per second of LibTorch for square matrices, which is near the peak of the processor.
double square_speed(at::ScalarType type, int rounds) {
  const int64_t size = 2048;
  const at::Tensor a = random({size, size}, type), b = random({size, size}, type);
  double best = 1e9;
  for (int round = 0; round <= rounds; ++round) best = std::min(best, seconds_of([&] { multiply_plain(a, b); }));
  return 2.0 * static_cast<double>(size * size * size) / best;
}

void measure(const Kind& kind, int rounds) {
  std::vector<at::Tensor> plain;
  std::vector<ops::PrepackedMatrix> packed;
  double bytes = 0, weights = 0;
  for (const Size size : layers()) {
    const at::Tensor w = random({size.outputs, size.inputs}, at::kFloat);
    packed.push_back(kind.pack(w.to(kind.dtype)));
    plain.push_back(kind.peer == at::kChar ? (w * 254).round().to(at::kChar) : w.to(kind.peer));
    bytes += static_cast<double>(packed.back().bytes());
    weights += static_cast<double>(w.numel());
  }
  const double square = square_speed(kind.peer, rounds);
  for (const int64_t rows : {1, 2, 4, 8, 16, 32, 128}) {
    double theirs = 1e9, ours = 1e9;
    std::vector<at::Tensor> x, plain_x;
    for (const Size size : layers()) {
      x.push_back(random({rows, size.inputs}, kind.dtype));
      plain_x.push_back(random({rows, size.inputs}, kind.peer));
    }
    for (int round = 0; round < rounds; ++round) {
      ours = std::min(ours, seconds_of([&] {
                        for (size_t i = 0; i < packed.size(); ++i) packed[i].multiply(x[i]);
                      }));
      theirs = std::min(theirs, seconds_of([&] {
                          for (size_t i = 0; i < plain.size(); ++i) multiply_plain(plain_x[i], plain[i]);
                        }));
    }
    const double speed = 2 * static_cast<double>(rows) * weights / ours;
    std::printf("%-10s %5ld %10.2f %10.1f %8.1f %13.2f %9.2f %12.0f%%\n", kind.name, static_cast<long>(rows),
                ours * 1e3, speed * 1e-9, bytes / ours * 1e-9, theirs * 1e3, theirs / ours, 100 * speed / square);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const at::NoGradGuard no_grad;
    at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
    const ops::InstructionSetScope kernels(ops::instruction_set_named(argc > 3 ? argv[3] : "auto"));
    std::printf("kernels %s, %d threads\n\n", ops::prepacked_kernels().name.data(), at::get_num_threads());
    std::printf("%-10s %5s %10s %10s %8s %13s %9s %13s\n", "weights", "rows", "ms", "GFLOP/s", "GB/s", "LibTorch, ms",
                "ratio", "of 2048^2");
    for (const Kind& kind : kinds())
      if (argc <= 4 || kind.name == std::string_view(argv[4])) measure(kind, rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "colossal_prepacked_bench: %s\n", error.what());
    return 1;
  }
}
