#include "colossal/ops/matmul.h"

#include <thread>

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops {
namespace {

/// Restores the process's choice, which is shared by all tests.
struct ChoiceScope {
  MatmulChoice before = matmul_choice();
  ~ChoiceScope() { set_matmul(before); }
};

std::vector<MatmulChoice> choices() {
  std::vector<MatmulChoice> all{choose_matmul("mkl")};
  if (has_onednn()) all.push_back(choose_matmul("onednn"));
  return all;
}

TEST(Matmul, ProductsEqualAten) {
  const ChoiceScope scope;
  for (const auto& choice : choices())
    for (const auto type : float_types())
      for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {5, 3, 7}, {65, 130, 33}}) {
        set_matmul(choice);
        const auto a = normal({m, k}, 1, type), b = normal({n, k}, 2, type), expected = at::mm(a, b.t());
        const auto x = a.to(type), w = b.to(type);
        expect_close(matmul_nt(x, w), expected, type, k, "nt");
        expect_close(matmul_nn(x, w.t()), expected, type, k, "nn of a transposed view");
        expect_close(matmul_nn(x, w.t().contiguous()), expected, type, k, "nn");
        expect_close(matmul_tn(x.t().contiguous(), w.t().contiguous()), expected, type, k, "tn");
        EXPECT_TRUE(matmul_tn(x.t(), w.t()).is_contiguous());
      }
}

TEST(Matmul, AddsIntoAnExistingResult) {
  const ChoiceScope scope;
  for (const auto& choice : choices()) {
    set_matmul(choice);
    const auto a = at::ones({300, 4}), b = at::full({70000, 4}, 2.0f);
    auto out = at::full({70000, 300}, std::nan(""), at::kFloat);
    matmul_nt_(out, b, a, 0);
    matmul_nn_(out, b, a.t(), 1);
    matmul_tn_(out, b.t(), a.t(), 1);
    EXPECT_TRUE(out.eq(24).all().item<bool>());
  }
}

TEST(Linear, EqualsAtenForEveryShapeAndDtype) {
  const ChoiceScope scope;
  const auto ours = [](const Tensors& t) { return Tensors{ops::linear(t[0], t[1], t[2])}; };
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

TEST(Linear, ComputesOnlyTheGradientsThatAreWanted) {
  for (int wanted = 1; wanted < 8; ++wanted) {
    Tensors leaves{normal({3, 4, 5}, 1), normal({6, 5}, 2), normal({6}, 3)};
    for (int i = 0; i < 3; ++i) leaves[i].requires_grad_(wanted >> i & 1);
    ops::linear(leaves[0], leaves[1], leaves[2]).sum().backward();  // an expanded gradient, too
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
  expect_close(ops::linear(x, weight, bias), at::linear(x, weight, bias), at::kDouble, 6, "strided");
  EXPECT_EQ(ops::linear(at::empty({0, 6}, at::kDouble), weight, bias).sizes(), (at::IntArrayRef{0, 4}));
}

TEST(Linear, RefusesSizesThatDoNotFit) {
  EXPECT_THROW(ops::linear(normal({2, 5}, 1), normal({4, 6}, 2), {}), Error);
  EXPECT_THROW(ops::linear(normal({2, 6}, 1), normal({4, 6}, 2), normal({5}, 3)), Error);
}

TEST(MatmulChoice, SurvivesEncoding) {
  for (int64_t code = 0; code < 8; ++code) EXPECT_EQ(MatmulChoice::decode(code).encode(), code);
  EXPECT_EQ(choose_matmul("mkl"), MatmulChoice{});
  EXPECT_THROW(choose_matmul("openblas"), Error);
}

TEST(MatmulChoice, IsTheSameForAllThreads) {
  std::vector<int64_t> codes(4);
  std::vector<std::thread> threads;
  for (auto& code : codes) threads.emplace_back([&code] { code = matmul_choice().encode(); });
  for (auto& thread : threads) thread.join();
  for (const auto code : codes) EXPECT_EQ(code, codes.front());
}

}  // namespace
}  // namespace colossal::ops
