// Linear layers in fp8 on a device that multiplies codes of 8 bits, by the checks of LibTorch's operator and with the
// numbers of dequantised operands.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "colossal/base/error.h"
#include "colossal/nn/fp8_product.h"
#include "colossal/nn/linear.h"
#include "colossal/ops/device_operators.h"
#include "colossal/ops/fp8.h"
#include "colossal/ops/scaled_product.h"
#include "colossal/tensor/flops.h"
#include "ops/compare.h"
#include "support/called_operators.h"
#include "support/trap_device.h"

namespace colossal::nn::fp8_trap_test {
namespace {

using ops::DeviceOperator;
using ops::normal;
using ops::Tensors;

class Fp8OnTrap : public testing::Test {
 protected:
  static void SetUpTestSuite() { test::trap_device(); }
};

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
    return (normal(shape, seed) * factor).to(c.type).to(test::trap_device());
  };
  const at::Tensor x = there({c.rows, c.in}, 1).requires_grad_(), dy = there({c.rows, c.out}, 4);
  const Parameter weight{.name = "w", .value = there({c.out, c.in}, 2).requires_grad_()};
  const at::Tensor bias = c.bias ? there({c.out}, 3).requires_grad_() : at::Tensor();
  Fp8Layers fp8(c.recipe);
  const auto product = fp8.wrap({std::shared_ptr<void>(), &serial_product()}, weight);
  const test::CalledOperators called;
  const tensor::FlopCount flops;
  const test::TrapWaits waits(test::trap_device());
  const at::Tensor y = linear(*product, x, weight.value, bias, c.out, nullptr);
  y.backward(dy);
  EXPECT_EQ(waits.counts().waits(), 0) << waits.counts();
  Result result{{}, called("_scaled_mm"), flops.total()};
  for (const at::Tensor& t : {y, x.grad(), weight.value.grad(), c.bias ? bias.grad() : at::Tensor()})
    result.tensors.push_back(t.defined() ? test::peek(t) : t);
  return result;
}

Result run_emulated(const Case& c) {
  const ops::WithoutDeviceOperator none(DeviceOperator::ScaledProduct);
  return run(c);
}

TEST_F(Fp8OnTrap, ProductsOfCodesEqualThoseOfDequantisedOperands) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
    for (const bool bias : {true, false})
      for (const auto scaling : {Fp8Recipe::Scaling::Current, Fp8Recipe::Scaling::Delayed}) {
        const Case c{32, 48, 16, type, bias, {.scaling = scaling}};
        const Result codes = run(c), emulated = run_emulated(c);
        EXPECT_EQ(codes.products, 3);
        EXPECT_EQ(emulated.products, 0);
        EXPECT_EQ(codes.flops, emulated.flops);
        for (size_t i = 0; i < codes.tensors.size(); ++i)
          ops::expect_close(codes.tensors[i], emulated.tensors[i], type, 48,
                            concat(type, bias ? " with" : " without", " bias, value or gradient ", i), 1);
      }
}

TEST_F(Fp8OnTrap, ScalesThatAreNoPowersOfTwoAreUndone) {
  const Case c{32, 48, 16, at::kFloat, true, {.power_of_two = false}};
  const Result codes = run(c), emulated = run_emulated(c);
  EXPECT_EQ(codes.products, 3);
  for (size_t i = 0; i < codes.tensors.size(); ++i)
    ops::expect_close(codes.tensors[i], emulated.tensors[i], at::kFloat, 48, concat("value or gradient ", i));
}

TEST_F(Fp8OnTrap, SizesAndTypesThatHardwareDoesNotTakeAreEmulated) {
  const auto products = [](const Case& c) {
    const Result got = run(c), want = run_emulated(c);
    for (size_t i = 0; i < got.tensors.size(); ++i)
      ops::expect_close(got.tensors[i], want.tensors[i], c.type, 48, concat("value or gradient ", i), 1);
    return got.products;
  };
  EXPECT_EQ(products({.rows = 5, .in = 48, .out = 16}), 2) << "dW adds up over rows";
  EXPECT_EQ(products({.rows = 32, .in = 40, .out = 16}), 0) << "every product has the inputs as a side";
  EXPECT_EQ(products({.rows = 32, .in = 48, .out = 24}), 1) << "dW takes any number of outputs";
  EXPECT_EQ(products({.rows = 32, .in = 48, .out = 16, .type = at::kDouble}), 0) << "of fp64 nothing is lost";
}

TEST_F(Fp8OnTrap, WhatIsNotFiniteShows) {
  const Result infinite = run({32, 48, 16}, std::numeric_limits<double>::infinity());
  EXPECT_EQ(infinite.products, 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(infinite.tensors[i].isnan().all().item<bool>()) << i;
}

TEST_F(Fp8OnTrap, WeightGradientsAreAddedInTheDtypeOfTheSum) {
  const auto codes = [](at::IntArrayRef shape, uint64_t seed, ops::Fp8 format) {
    return ops::Scaled{normal(shape, seed).to(ops::dtype_of(format)).to(test::trap_device()),
                       at::full({}, 0.5, at::dtype(at::kFloat).device(test::trap_device()))};
  };
  const ops::Scaled dy = codes({32, 16}, 1, ops::Fp8::E5m2), x = codes({32, 48}, 2, ops::Fp8::E4m3);
  const auto wide = [](const ops::Scaled& s) { return test::peek(s.codes).to(at::kDouble) * 2; };
  const at::Tensor want = wide(dy).t().mm(wide(x)) + 1;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor sum = at::ones({16, 48}, at::dtype(type).device(test::trap_device()));
    EXPECT_TRUE(ops::scaled_tn(dy, x, at::kBFloat16, sum).is_same(sum));
    ops::expect_close(test::peek(sum), want, type, 32, at::toString(type), 1);
  }
}

}  // namespace
}  // namespace colossal::nn::fp8_trap_test
