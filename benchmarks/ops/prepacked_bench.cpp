// Products with prepacked weights against LibTorch's linear, at the sizes of all linear layers of a LLaMA of 551
// million parameters: hidden 1536, 16 layers, ffn 4096, 32000 words.
//
// Usage: colossal_prepacked_bench [threads] [rounds]. Prints the best time of a pass over all layers for several
//        numbers of rows, and the bytes of weights read per second. LibTorch's products and ours are run alternately.
//        GOMP_SPINCOUNT=1000, as `colossal` sets it, keeps LibTorch's threads from spinning while ours need the core.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

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

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print(const char* what, int64_t rows, double seconds, double bytes) {
  std::printf("%-14s %4ld rows %9.2f ms %7.1f GB/s %8.1f rows/s\n", what, static_cast<long>(rows), seconds * 1e3,
              bytes / seconds * 1e-9, static_cast<double>(rows) / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  const at::NoGradGuard no_grad;
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  std::printf("%s, %d threads\n", ops::prepacked_kernels().name.data(), at::get_num_threads());
  struct Kind {
    const char* name;
    at::ScalarType dtype;
    std::function<ops::PrepackedMatrix(const at::Tensor&)> pack;
  };
  const std::vector<Kind> kinds{
      {"fp32", at::kFloat, [](const at::Tensor& w) { return ops::PrepackedMatrix::of(w, ops::PackedType::Float); }},
      {"bf16", at::kBFloat16, [](const at::Tensor& w) { return ops::PrepackedMatrix::of(w, ops::PackedType::Bf16); }},
      {"8 bits", at::kBFloat16,
       [](const at::Tensor& w) { return ops::PrepackedMatrix(ops::round_to_codes(w, {.bits = 8})); }},
      {"4 bits", at::kBFloat16,
       [](const at::Tensor& w) { return ops::PrepackedMatrix(ops::round_to_codes(w, {.bits = 4})); }},
      {"4 bits, 32", at::kBFloat16, [](const at::Tensor& w) {
         return ops::PrepackedMatrix(ops::round_to_codes(w, {.bits = 4, .group = 32, .minima = true}));
       }}};
  for (const Kind& kind : kinds) {
    std::vector<at::Tensor> plain;
    std::vector<ops::PrepackedMatrix> packed;
    double bytes = 0;
    for (const Size size : layers()) {
      plain.push_back((at::rand({size.outputs, size.inputs}) - 0.5).to(kind.dtype));
      packed.push_back(kind.pack(plain.back()));
      bytes += static_cast<double>(packed.back().bytes());
    }
    for (const int64_t rows : {1, 8, 128}) {
      double theirs = 1e9, ours = 1e9;
      std::vector<at::Tensor> x;
      for (const Size size : layers()) x.push_back(at::rand({rows, size.inputs}).to(kind.dtype));
      for (int round = 0; round < rounds; ++round) {
        ours = std::min(ours, seconds_of([&] {
                          for (size_t i = 0; i < packed.size(); ++i) packed[i].multiply(x[i]);
                        }));
        if (kind.name[0] == '8' || kind.name[0] == '4') continue;
        theirs = std::min(theirs, seconds_of([&] {
                            for (size_t i = 0; i < plain.size(); ++i) at::linear(x[i], plain[i]);
                          }));
      }
      print(kind.name, rows, ours, bytes);
      if (theirs < 1e9) print("  LibTorch", rows, theirs, bytes);
    }
  }
}
