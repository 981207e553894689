// Convolutions, GroupNorms and resampling of an accelerator: LibTorch's own operators, against the CPU's results.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "accelerator/on_accelerator.h"
#include "colossal/ops/causal_convolution.h"
#include "colossal/ops/convolution.h"
#include "colossal/ops/group_norm.h"
#include "ops/compare.h"
#include "support/accelerator.h"

namespace colossal::ops::pictures_accelerator_test {
namespace {

using test::on_accelerator;
using PicturesOnAccelerator = test::AcceleratorTest;

TEST_F(PicturesOnAccelerator, EqualConvolutionsOfTheCpu) {
  const Tensors in{normal({2, 5, 6, 8}, 1), normal({16, 8, 3, 3}, 2), normal({16}, 3)};
  for (const auto type : {at::kDouble, at::kBFloat16}) {  // GPUs may round the factors of fp32 (TF32)
    for (const Window& window :
         {Window::same(3), Window{.stride = 2, .bottom = 1, .right = 1}, Window{2, 1, 1, 1, 1}}) {
      const Operator run = [&](const Tensors& t) { return Tensors{convolution(t[0], t[1], t[2], window)}; };
      expect_equal_operators(on_accelerator(run), run, in, type, in[0].numel(), 2);
    }
    const Operator plain = [](const Tensors& t) { return Tensors{convolution(t[0], t[1], {}, {})}; };
    expect_equal_operators(on_accelerator(plain), plain, {in[0], normal({4, 8, 1, 1}, 2)}, type, in[0].numel(), 2);
  }
}

TEST_F(PicturesOnAccelerator, EqualConvolutionsOfClipsOfTheCpu) {
  const Tensors in{normal({1, 4, 3, 4, 8}, 1), normal({16, 8, 3, 3, 3}, 2), normal({16}, 3)};
  for (const auto type : {at::kDouble, at::kBFloat16})
    for (const CausalWindow& window :
         {CausalWindow{}, CausalWindow{.replicates = true}, CausalWindow{.frame_stride = 2, .stride = 2, .front = 1}}) {
      const Operator run = [&](const Tensors& t) { return Tensors{causal_convolution(t[0], t[1], t[2], window)}; };
      expect_equal_operators(on_accelerator(run), run, in, type, 27 * 8, 2);
    }
}

TEST_F(PicturesOnAccelerator, EqualNormsOfTheCpu) {
  const Tensors in{normal({2, 30, 16}, 1) + 0.5, normal({16}, 2), normal({16}, 3)};
  const Operator run = [](const Tensors& t) { return Tensors{group_norm(t[0], t[1], t[2], {4, 1e-5})}; };
  const Operator reference = [](const Tensors& t) {
    return Tensors{group_norm_reference(t[0], t[1], t[2], {4, 1e-5})};
  };
  for (const auto type : float_types())
    expect_equal_operators(on_accelerator(run), reference, in, type, in[0].numel(), 1);
}

// LibTorch's kernels would keep a mean of bf16, which is off by up to 2^-9 of it: many deviations of these pictures.
TEST_F(PicturesOnAccelerator, HaveWideStatistics) {
  const Tensors in{normal({1, 4096, 8}, 1) * 0x1p-6 + 0.3, at::ones({8}, at::kDouble), at::zeros({8}, at::kDouble)};
  const Operator run = [](const Tensors& t) { return Tensors{group_norm(t[0], t[1], t[2], {2, 1e-6})}; };
  expect_equal_operators(on_accelerator(run), run, in, at::kBFloat16, 4096 * 4, 1);
}

TEST_F(PicturesOnAccelerator, GrowAsOnTheCpu) {
  const Operator larger = [](const Tensors& t) { return Tensors{enlarged(t[0], {5, 8})}; };
  const Operator taps = [](const Tensors& t) { return Tensors{unfolded(t[0], {3, 3}, Window::same(3))}; };
  for (const Operator& run : {larger, taps})
    for (const auto type : float_types())
      expect_equal_operators(on_accelerator(run), run, {normal({2, 3, 4, 6}, 1)}, type, 9, 2);
}

}  // namespace
}  // namespace colossal::ops::pictures_accelerator_test
