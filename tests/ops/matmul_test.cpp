#include "colossal/ops/products/matmul.h"

#include <thread>

#include "colossal/base/error.h"
#include "ops/compare.h"
#include "ops/matmul_choices.h"

namespace colossal::ops::matmul_test {
namespace {

TEST(Matmul, EqualsAten) {
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
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      const auto a = at::ones({30, 4}, type), b = at::full({70, 4}, 2, type);
      auto out = at::full({70, 30}, std::nan(""), type);
      matmul_nt_(out, b, a, 0);
      matmul_nt_(out, b, a, 1);
      EXPECT_TRUE(matmul_tn(b.t(), a.t(), out).is_same(out));
      EXPECT_TRUE(out.eq(24).all().item<bool>());
      matmul_nn_(out, b, a.t());
      EXPECT_TRUE(out.eq(8).all().item<bool>());
    }
    const auto a = at::ones({300, 4}), b = at::full({70000, 4}, 2.0f);
    auto out = at::full({70000, 300}, std::nan(""), at::kFloat);
    matmul_nt_(out, b, a, 0);
    matmul_nt_(out, b, a, 1);
    EXPECT_TRUE(matmul_tn(b.t(), a.t(), out).is_same(out));
    EXPECT_TRUE(out.eq(24).all().item<bool>());
    matmul_nn_(out, b, a.t());
    EXPECT_TRUE(out.eq(8).all().item<bool>());
  }
}

// Long sums of narrow products do not stagnate if they are accumulated in fp32.
TEST(Matmul, AddsNarrowProductsToAWideSum) {
  const ChoiceScope scope;
  for (const auto& choice : choices()) {
    set_matmul(choice);
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      const auto a = normal({3, 65}, 1, type), b = normal({3, 33}, 2, type);
      auto sum = at::zeros({65, 33}, at::kFloat), rows = at::zeros({65, 33}, at::kFloat);
      constexpr int kTimes = 1000;
      for (int i = 0; i < kTimes; ++i) {
        EXPECT_TRUE(matmul_tn(a.to(type), b.to(type), sum).is_same(sum));
        matmul_nt_(rows, a.t().to(type), b.t().to(type), 1);
      }
      const auto once = at::mm(a.t(), b);
      expect_close(sum, once * kTimes, type, kTimes, "tn");
      expect_close(rows, once * kTimes, type, kTimes, "nt");
      matmul_nn_(rows, a.t().to(type), b.to(type));
      expect_close(rows, once, type, 3, "nn");
    }
  }
}

TEST(MatmulChoice, SurvivesEncoding) {
  for (int64_t code = 0; code < 8; ++code) EXPECT_EQ(MatmulChoice::decode(code).encode(), code);
  EXPECT_EQ(choose_matmul("mkl"), MatmulChoice{});
  EXPECT_THROW(choose_matmul("openblas"), Error);
}

TEST(MatmulChoice, AppliesToAllThreads) {
  std::vector<int64_t> codes(4);
  std::vector<std::thread> threads;
  for (auto& code : codes) threads.emplace_back([&code] { code = matmul_choice().encode(); });
  for (auto& thread : threads) thread.join();
  for (const auto code : codes) EXPECT_EQ(code, codes.front());
}

}  // namespace
}  // namespace colossal::ops::matmul_test
