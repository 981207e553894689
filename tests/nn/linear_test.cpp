#include "colossal/nn/linear.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "colossal/base/error.h"
#include "ops/compare.h"
#include "ops/matmul_choices.h"

namespace colossal::nn::linear_test {
namespace {

using namespace ops;

TEST(Linear, EqualsAtenForAllShapesAndDtypes) {
  const ChoiceScope scope;
  const auto ours = [](const Tensors& t) { return Tensors{linear(t[0], t[1], t[2])}; };
  const auto reference = [](const Tensors& t) {
    return Tensors{at::linear(t[0], t[1], t[2].defined() ? std::optional<at::Tensor>(t[2]) : std::nullopt)};
  };
  for (const auto& choice : choices()) {
    set_matmul(choice);
    for (const auto type : float_types())
      for (const auto& shape : std::vector<std::vector<int64_t>>{{7}, {1, 7}, {5, 7}, {2, 3, 7}, {2, 33, 2, 7}}) {
        const auto x = normal(shape, 1), weight = normal({11, 7}, 2), bias = normal({11}, 3);
        const int64_t longest = std::max<int64_t>(x.numel() / 7, 11);
        expect_equal_operators(ours, reference, {x, weight, bias}, type, longest);
        expect_equal_operators(ours, reference, {x, weight, {}}, type, longest);
      }
  }
}

TEST(Linear, ComputesOnlyWantedGradients) {
  for (int wanted = 1; wanted < 8; ++wanted) {
    Tensors leaves{normal({3, 4, 5}, 1), normal({6, 5}, 2), normal({6}, 3)};
    for (int i = 0; i < 3; ++i) leaves[i].requires_grad_(wanted >> i & 1);
    // the gradient is an expanded tensor, which must work, too
    linear(leaves[0], leaves[1], leaves[2]).sum().backward();
    Tensors expected{leaves[1].detach().sum(0).expand({3, 4, 5}), leaves[0].detach().sum({0, 1}).expand({6, 5}),
                     at::full({6}, 12.0, at::kDouble)};
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(leaves[i].grad().defined(), bool(wanted >> i & 1));
      if (leaves[i].grad().defined()) expect_close(leaves[i].grad(), expected[i], at::kDouble, 12, "gradient");
    }
    if (leaves[1].grad().defined()) EXPECT_TRUE(leaves[1].grad().is_contiguous());
  }
}

TEST(Linear, WorksOnStridedAndEmptyInput) {
  const auto weight = normal({4, 6}, 2), bias = normal({4}, 3);
  const auto x = normal({3, 12, 2}, 1).slice(1, 0, 12, 2).transpose(1, 2);
  expect_close(linear(x, weight, bias), at::linear(x, weight, bias), at::kDouble, 6, "strided");
  EXPECT_EQ(linear(at::empty({0, 6}, at::kDouble), weight, bias).sizes(), (at::IntArrayRef{0, 4}));
}

/// A product that also multiplies the rows of other ranks.
struct WithOthers : Product {
  explicit WithOthers(at::Tensor others) : others(std::move(others)) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    return serial_product().forward(at::cat({x, others}), weight, bias, out, saved);
  }
  Gradients backward(const at::Tensor&, const Saved&, const Wanted&) const override { return {}; }
  at::Tensor others;
};

TEST(Linear, GathersRowsForEmptyInput) {
  const auto weight = normal({4, 5}, 2), others = normal({6, 5}, 1);
  const WithOthers product(others);
  const auto y = linear(product, at::empty({0, 2, 5}, at::kDouble), weight, {}, 4, nullptr);
  ASSERT_EQ(y.sizes(), (at::IntArrayRef{3, 2, 4}));
  expect_close(y.flatten(0, 1), at::linear(others, weight), at::kDouble, 5, "rows of others");
}

TEST(Linear, RefusesSizesThatDoNotFit) {
  EXPECT_THROW(linear(normal({2, 5}, 1), normal({4, 6}, 2), at::Tensor()), Error);
  EXPECT_THROW(linear(normal({2, 6}, 1), normal({4, 6}, 2), normal({5}, 3)), Error);
}

struct CountingHook : torch::autograd::PostAccumulateGradHook {
  explicit CountingHook(int& count) : count(count) {}
  void operator()(const torch::autograd::Variable&) override { ++count; }
  int& count;
};

TEST(DeferredGradients, EqualImmediateGradientsBitwise) {
  const auto gradients = [](bool defers, int* hooks) {
    DeferredGradients deferred;
    auto first = normal({6, 5}, 2).requires_grad_(), second = normal({3, 6}, 3).requires_grad_(),
         bias = normal({6}, 4).requires_grad_();
    torch::autograd::impl::set_post_acc_grad_hooks(first, std::make_unique<CountingHook>(*hooks));
    std::vector<DeferredGradients::Tasks> tasks;
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      auto x = normal({4, 5}, 10 + micro_batch).requires_grad_();
      const auto loss = linear(linear(x, first, bias, &deferred).tanh(), second * 2, {}, &deferred).square().sum();
      if (!defers) {
        loss.backward();
        continue;
      }
      tasks.push_back(deferred.collect([&] { loss.backward(); }));
      EXPECT_FALSE(deferred.active());
      EXPECT_EQ(tasks.back().size(), 2u);
      EXPECT_TRUE(x.grad().defined());  // the gradient for which the previous stage waits exists already
    }
    if (defers) {
      EXPECT_FALSE(first.grad().defined());
      *hooks = 0;  // autograd also runs a leaf's hook in the pass that deferred its gradient
    }
    for (const auto& pass : tasks)
      for (const auto& task : pass) task();
    return Tensors{first.grad(), second.grad(), bias.grad()};
  };
  int at_once = 0, later = 0;
  const auto expected = gradients(false, &at_once), found = gradients(true, &later);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
  EXPECT_EQ(later, at_once);
}

TEST(DeferredGradients, DiscardTasksOfFailedPass) {
  DeferredGradients deferred;
  EXPECT_THROW(deferred.collect([] { throw Error("test", "stop"); }), Error);
  EXPECT_FALSE(deferred.active());
}

}  // namespace
}  // namespace colossal::nn::linear_test
