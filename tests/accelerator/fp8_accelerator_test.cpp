// Linear layers in fp8 on a device that multiplies 8-bit values. The operands pass the checks of LibTorch's operator,
// and the results equal products of dequantized operands.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/nn/fp8_product.h"
#include "colossal/nn/linear.h"
#include "colossal/ops/device/operators.h"
#include "colossal/ops/products/fp8.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/tensor/flops.h"
#include "ops/compare.h"
#include "support/accelerator.h"
#include "support/called_operators.h"

namespace colossal::nn::fp8_accelerator_test {
namespace {

using ops::DeviceOperator;
using ops::normal;
using ops::Tensors;

class Fp8OnAccelerator : public test::AcceleratorTest {};

struct Case {
  int64_t rows, in, out;
  at::ScalarType type = at::kBFloat16;
  bool bias = true;
  Fp8Recipe recipe{};
};

struct Result {
  Tensors tensors;  ///< y, then the gradients of x, weight and bias
  int products = 0;
  double flops = 0;
};

Result run(const Case& c, double factor = 1) {
  const auto there = [&](at::IntArrayRef shape, uint64_t seed) {
    return (normal(shape, seed) * factor).to(c.type).to(test::accelerator());
  };
  const at::Tensor x = there({c.rows, c.in}, 1).requires_grad_(), dy = there({c.rows, c.out}, 4);
  const Parameter weight{.name = "w", .value = there({c.out, c.in}, 2).requires_grad_(), .hidden_matrix = true};
  const at::Tensor bias = c.bias ? there({c.out}, 3).requires_grad_() : at::Tensor();
  Fp8Products fp8(c.recipe);
  Parameters parameters({}, {.device = test::accelerator()});
  const auto product = fp8.wrap({std::shared_ptr<void>(), &serial_product()}, weight, parameters);
  const test::CalledOperators called;
  const tensor::FlopCount flops;
  test::AcceleratorWaits waits;
  const at::Tensor y = linear(*product, x, weight.value, bias, c.out, nullptr);
  y.backward(dy);
  EXPECT_EQ(waits.counts().waits(), 0) << waits.counts();
  Result result{{}, called("_scaled_mm"), flops.total()};
  for (const at::Tensor& t : {y, x.grad(), weight.value.grad(), c.bias ? bias.grad() : at::Tensor()})
    result.tensors.push_back(t.defined() ? test::peek(t) : t);
  return result;
}

/// Compares a product of 8-bit values. The tensor cores of Hopper align the terms of a sum to the largest one and keep
/// 13 bits behind the point ("DeepSeek-V3 Technical Report", section 3.3.2, arXiv:2412.19437): each term may lose 2^-13
/// of that one. Losses of both signs add up like the square root of their number.
void expect_same_product(const at::Tensor& actual, const at::Tensor& expected, at::ScalarType type, int64_t terms,
                         const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual.defined()) return;
  const at::Tensor error = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs();
  const double of_cores =
      type == at::kDouble ? 0 : 0x1p-13 * std::sqrt(static_cast<double>(terms)) * expected.abs().max().item<double>();
  const at::Tensor limit = ops::tolerance(expected, type, terms, 1) + of_cores;
  EXPECT_TRUE(error.le(limit).all().item<bool>())
      << what << ": off by " << (error / limit).max().item<double>() << " times what is allowed";
}

Result run_emulated(const Case& c) {
  const ops::WithoutDeviceOperator none(DeviceOperator::ScaledProduct);
  return run(c);
}

TEST_F(Fp8OnAccelerator, EqualsProductsOfDequantizedOperands) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
    for (const bool bias : {true, false})
      for (const auto scaling : {Fp8Recipe::Scaling::Current, Fp8Recipe::Scaling::Delayed}) {
        const Case c{32, 48, 16, type, bias, {.scaling = scaling}};
        const Result codes = run(c), emulated = run_emulated(c);
        EXPECT_EQ(codes.products, 3);
        EXPECT_EQ(emulated.products, 0);
        EXPECT_EQ(codes.flops, emulated.flops);
        for (size_t i = 0; i < codes.tensors.size(); ++i)
          expect_same_product(codes.tensors[i], emulated.tensors[i], type, 48,
                              concat(type, bias ? " with" : " without", " bias, value or gradient ", i));
      }
}

TEST_F(Fp8OnAccelerator, UndoesScalesThatAreNoPowersOfTwo) {
  const Case c{32, 48, 16, at::kFloat, true, {.power_of_two = false}};
  const Result codes = run(c), emulated = run_emulated(c);
  EXPECT_EQ(codes.products, 3);
  for (size_t i = 0; i < codes.tensors.size(); ++i)
    expect_same_product(codes.tensors[i], emulated.tensors[i], at::kFloat, 48, concat("value or gradient ", i));
}

TEST_F(Fp8OnAccelerator, QuantizesLikeTheCpu) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const ops::Fp8 format : {ops::Fp8::E4m3, ops::Fp8::E5m2})
      for (const double scale : {0.3, 1000.0, 3e5}) {  // the last one saturates
        const at::Tensor x = normal({7, 9}, 1).to(type), factor = at::full({}, scale, at::kFloat);
        const at::Tensor there = ops::quantize(x.to(test::accelerator()), format, factor.to(test::accelerator()));
        EXPECT_TRUE(at::equal(test::peek(there).view(at::kByte), ops::quantize(x, format, factor).view(at::kByte)))
            << type << " times " << scale;
      }
}

TEST_F(Fp8OnAccelerator, EmulatesUnsupportedSizesAndTypes) {
  const auto products = [](const Case& c) {
    const Result got = run(c), want = run_emulated(c);
    for (size_t i = 0; i < got.tensors.size(); ++i)
      expect_same_product(got.tensors[i], want.tensors[i], c.type, 48, concat("value or gradient ", i));
    return got.products;
  };
  EXPECT_EQ(products({.rows = 5, .in = 48, .out = 16}), 2) << "dW adds up over rows";
  EXPECT_EQ(products({.rows = 32, .in = 40, .out = 16}), 0) << "every product has the inputs as a side";
  EXPECT_EQ(products({.rows = 32, .in = 48, .out = 24}), 1) << "dW takes any number of outputs";
  EXPECT_EQ(products({.rows = 32, .in = 48, .out = 16, .type = at::kDouble}), 0) << "of fp64 nothing is lost";
}

/// Returns y, dx and dW of an expand and a contract layer that two ranks split, for rank 0 and then for rank 1.
Tensors split_layers() {
  std::vector<Tensors> of_ranks(2);
  comm::run_ranks(2, [&](comm::World& world) {
    const at::Device device = test::accelerator(world.local_rank());
    comm::Mesh mesh(world, {{"tensor", 2}});
    const parallel::Layout layout = parallel::make_layout({.size = 2}, mesh);
    const auto there = [&](at::IntArrayRef shape, uint64_t seed) {
      return normal(shape, 10 * seed + static_cast<uint64_t>(world.rank())).to(at::kBFloat16).to(device);
    };
    Fp8Products fp8({});
    nn::Parameters parameters(mesh.coordinates(), {.device = device});
    for (const auto& inner : {layout.expand.product, layout.contract.product}) {
      const Parameter weight{.name = "w", .value = there({16, 48}, 2), .hidden_matrix = true};
      const auto product = fp8.wrap(inner, weight, parameters);
      Product::Saved saved;
      const at::Tensor x = there({32, 48}, 1), bias = there({16}, 3), dy = there({32, 16}, 4);
      const at::Tensor y = product->forward(x, weight.value, bias, 16, &saved);
      const Product::Gradients d = product->backward(dy, saved, {});
      for (const at::Tensor& t : {y, d.x, d.weight}) of_ranks[world.rank()].push_back(test::peek(t));
    }
  });
  of_ranks[0].insert(of_ranks[0].end(), of_ranks[1].begin(), of_ranks[1].end());
  return of_ranks[0];
}

TEST_F(Fp8OnAccelerator, MultipliesFp8ValuesInSplitLayers) {
  if (!test::has_accelerators_for(2)) GTEST_SKIP() << "two ranks that are threads need two devices";
  const test::CalledOperators called;
  const Tensors codes = split_layers();
  EXPECT_EQ(called("_scaled_mm"), 2 * 2 * 3) << "ranks, layers, products";
  const ops::WithoutDeviceOperator none(DeviceOperator::ScaledProduct);
  const Tensors emulated = split_layers();
  EXPECT_EQ(called("_scaled_mm"), 2 * 2 * 3);
  for (size_t i = 0; i < codes.size(); ++i)  // each value is a sum of two values that were rounded
    ops::expect_close(codes[i], emulated[i], at::kBFloat16, 48, concat("number ", i), 3);
}

TEST_F(Fp8OnAccelerator, PropagatesValuesThatAreNotFinite) {
  const Result infinite = run({32, 48, 16}, std::numeric_limits<double>::infinity());
  EXPECT_EQ(infinite.products, 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(infinite.tensors[i].isnan().all().item<bool>()) << i;
}

TEST_F(Fp8OnAccelerator, AddsWeightGradientsInTheDtypeOfTheSum) {
  const auto codes = [](at::IntArrayRef shape, uint64_t seed, ops::Fp8 format) {
    return ops::Scaled{normal(shape, seed).to(ops::dtype_of(format)).to(test::accelerator()),
                       at::full({}, 0.5, at::dtype(at::kFloat).device(test::accelerator()))};
  };
  const ops::Scaled dy = codes({32, 16}, 1, ops::Fp8::E5m2), x = codes({32, 48}, 2, ops::Fp8::E4m3);
  const auto wide = [](const ops::Scaled& s) { return test::peek(s.codes).to(at::kDouble) * 2; };
  const at::Tensor want = wide(dy).t().mm(wide(x)) + 1;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor sum = at::ones({16, 48}, at::dtype(type).device(test::accelerator()));
    EXPECT_TRUE(ops::scaled_tn(dy, x, at::kBFloat16, sum).is_same(sum));
    expect_same_product(test::peek(sum), want, type, 32, at::toString(type));
  }
}

}  // namespace
}  // namespace colossal::nn::fp8_accelerator_test
