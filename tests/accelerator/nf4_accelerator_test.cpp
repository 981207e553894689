// Weights in NF4 on accelerators, where LibTorch's operators quantize and decode: codes and values must be the CPU's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "accelerator/on_accelerator.h"
#include "colossal/ops/products/placed_matrix.h"
#include "ops/compare.h"
#include "support/accelerator.h"

namespace colossal::ops::nf4_accelerator_test {
namespace {

class Nf4OnAccelerator : public test::AcceleratorTest {};

TEST_F(Nf4OnAccelerator, QuantizesAndDecodesAsTheCpu) {
  for (const int64_t columns : {128, 43})
    for (const bool double_quantized : {false, true})
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor matrix = normal({9, columns}, 1).to(type);
        const Nf4Weight here = quantize_nf4(matrix, {double_quantized});
        const Nf4Weight there = quantize_nf4(matrix.to(test::accelerator()), {double_quantized});
        const std::string what = std::to_string(columns) + " " + at::toString(type);
        EXPECT_TRUE(at::equal(there.codes().cpu(), here.codes())) << what;
        // The mean of the maxima is a sum in an order of the device, so a code may be the next one, at most 1/64 away.
        const at::Tensor error = (there.absmax().cpu() - here.absmax()).abs();
        EXPECT_LE(error.max().item<double>(), double_quantized ? 0x1p-6 * here.absmax().max().item<double>() : 0)
            << what;
        const Nf4Weight moved = here.to(test::accelerator());
        EXPECT_TRUE(at::equal(dequantize(moved, type).cpu(), dequantize(here, type))) << what;
        const MatrixPart part{.row = 2, .rows = 5, .column = columns / 2, .columns = columns / 2};
        EXPECT_TRUE(at::equal(dequantize(moved, type, part).cpu(), dequantize(here, type, part))) << what;
        EXPECT_TRUE(at::equal(moved.part(part).bytes().cpu(), here.part(part).bytes())) << what;
      }
}

TEST_F(Nf4OnAccelerator, MultipliesAsTheCpu) {
  for (const int64_t inputs : {128, 43})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Nf4Weight q = quantize_nf4(normal({20, inputs}, 1), {});
      const GroupWeight k(round_to_codes(normal({12, inputs}, 2).to(at::kFloat), {.bits = 4, .group = 16}));
      const PlacedMatrix here(32, inputs, {{q, 0}, {k, 20}}),
          there(32, inputs, {{q.to(test::accelerator()), 0}, {k.to(test::accelerator()), 20}});
      const at::Tensor w = here.dequantize(type).to(at::kDouble);
      const Tensors in{normal({5, inputs}, 3, type), normal({32}, 4, type), normal({5, 32}, 5, type)};
      Tensors narrow;
      for (const at::Tensor& x : in) narrow.push_back(x.to(type));
      const Tensors got = test::on_accelerator(
          [&](const Tensors& x) { return Tensors{there.multiply(x[0], x[1]), there.input_gradient(x[2])}; })(narrow);
      expect_close(got[0], at::linear(in[0], w, in[1]), type, inputs, "y", 1);
      expect_close(got[1], at::mm(in[2], w), type, 32, "dx");
    }
}

}  // namespace
}  // namespace colossal::ops::nf4_accelerator_test
