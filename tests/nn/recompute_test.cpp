#include "colossal/nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/nn/linear.h"

namespace colossal::nn::recompute_test {
namespace {

/// Computes x -> (2 x)^2, and records whether the tensor in between is still alive.
struct Watched {
  at::Tensor operator()(const at::Tensor& x) {
    const at::Tensor inner = x * 2;
    ++*calls;
    *watched = c10::weak_intrusive_ptr<c10::TensorImpl>(inner.getIntrusivePtr());
    return inner * inner;
  }
  std::shared_ptr<int> calls = std::make_shared<int>(0);
  std::shared_ptr<c10::weak_intrusive_ptr<c10::TensorImpl>> watched =
      std::make_shared<c10::weak_intrusive_ptr<c10::TensorImpl>>(at::empty({0}).getIntrusivePtr());
};

TEST(Recompute, FreesAndRecomputesInnerTensors) {
  const at::Tensor x = at::arange(6, at::kDouble).requires_grad_();
  Watched kept, forgotten;
  const at::Tensor y = kept(x), z = recomputed(forgotten, x);
  EXPECT_FALSE(kept.watched->expired());
  EXPECT_TRUE(forgotten.watched->expired());
  EXPECT_TRUE(at::equal(y, z));
  z.sum().backward();
  EXPECT_EQ(*forgotten.calls, 2);
  EXPECT_TRUE(at::equal(x.grad(), 8 * x.detach()));
}

TEST(Recompute, CallsFunctionWithoutGradMode) {
  const at::NoGradGuard no_grad;
  Watched function;
  recomputed(function, at::ones({2}));
  EXPECT_EQ(*function.calls, 1);
}

TEST(Recompute, TrainsParametersAfterInputWithoutGradient) {
  const at::Tensor x = at::arange(6, at::kDouble), weight = at::full({6}, 3, at::kDouble).requires_grad_();
  Watched watched;
  int calls = 0;
  const auto function = [&](const at::Tensor& input) {
    ++calls;
    EXPECT_FALSE(input.requires_grad());
    return watched(input * weight);
  };
  const at::Tensor y = recomputed(function, x);
  EXPECT_TRUE(watched.watched->expired());
  EXPECT_TRUE(at::equal(y, (2 * x * weight).square()));
  y.sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(at::equal(weight.grad(), 8 * x.square() * weight.detach()));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Recompute, ReachesParametersOfSeveralInputsWithoutGradient) {
  const at::Tensor x = at::arange(3, at::kDouble);
  at::Tensor weight = at::ones({3}, at::kDouble).requires_grad_();
  int calls = 0;
  const auto function = [&](const std::vector<at::Tensor>& in) {
    ++calls;
    return std::vector<at::Tensor>{in[0] * weight, in[0] + in[1]};
  };
  const std::vector<at::Tensor> y = recomputed(function, {x, x});
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(y[1].requires_grad()) << "nothing in it is trained";
  y[0].sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(at::equal(weight.grad(), x));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Recompute, KeepsNoTensorWithoutGradients) {
  Watched function;
  const at::Tensor y = recomputed(function, at::ones({2}));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(function.watched->expired());
  EXPECT_EQ(*function.calls, 1);
}

/// Computes (x, index) -> (rows of x, the next index, 3 x): several inputs, one of integers, and several outputs.
std::vector<at::Tensor> rows_and_next(const std::vector<at::Tensor>& in) {
  return {in[0].index_select(0, in[1]).square(), in[1] + 1, in[0] * 3};
}

TEST(Recompute, EqualsFunctionOfSeveralTensors) {
  const at::Tensor index = at::tensor({2, 0}, at::kLong);
  at::Tensor x = at::arange(6, at::kDouble).view({3, 2}).requires_grad_(), same = x.detach().clone().requires_grad_();
  const std::vector<at::Tensor> want = rows_and_next({same, index}), got = recomputed(rows_and_next, {x, index});
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  EXPECT_FALSE(got[1].requires_grad());
  want[0].sum().backward();  // the last output is not read, so its gradient is zeros
  got[0].sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), same.grad()));
  recomputed(rows_and_next, {x, index})[2].sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), same.grad() + 3));
}

TEST(Recompute, KeepsOnlySourceBeforeLinearLayer) {
  for (const bool defers : {false, true}) {
    DeferredGradients deferred;
    const auto leaf = [](std::vector<int64_t> shape) {
      return (at::arange(12, at::kDouble).reshape(shape) / 7).requires_grad_();
    };
    at::Tensor x = leaf({4, 3}), weight = leaf({4, 3}), same_x = leaf({4, 3}), same_weight = leaf({4, 3});
    Watched before;
    const at::Tensor y = linear(x, weight, {}, &deferred, before);
    EXPECT_TRUE(before.watched->expired());
    linear(Watched()(same_x), same_weight, at::Tensor()).sum().backward();
    if (!defers) {
      y.sum().backward();
      EXPECT_EQ(*before.calls, 2);
    } else {
      for (const auto& task : deferred.collect([&] { y.sum().backward(); })) task();
      EXPECT_EQ(*before.calls, 3);
    }
    EXPECT_TRUE(at::equal(x.grad(), same_x.grad()));
    EXPECT_TRUE(at::equal(weight.grad(), same_weight.grad()));
  }
}

}  // namespace
}  // namespace colossal::nn::recompute_test
