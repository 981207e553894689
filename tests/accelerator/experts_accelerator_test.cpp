// Choices, limits and dispatch of experts on accelerators: the same as on the host, with one wait for the numbers of
// rows.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/nn/expert_choice.h"
#include "colossal/nn/expert_dispatch.h"
#include "ops/compare.h"
#include "support/accelerator.h"

namespace colossal::nn::experts_accelerator_test {
namespace {

class ExpertsOnAccelerator : public test::AcceleratorTest {};

constexpr int64_t kTokens = 37, kCount = 6, kUsed = 2;

at::Tensor scores() { return ops::normal({kTokens, kCount}, 1, at::kFloat).softmax(-1); }

TEST_F(ExpertsOnAccelerator, ChooseAndLimitAsOnTheHost) {
  for (const int64_t groups : {1, 3}) {
    const ExpertOptions options{.count = kCount, .used = kUsed, .groups = groups, .groups_used = groups > 1 ? 2 : 1};
    const at::Tensor host = scores(), there = host.to(test::accelerator());
    const at::Tensor want = chosen_experts(host, {}, options);
    test::AcceleratorWaits waits;
    const at::Tensor experts = chosen_experts(there, {}, options), counts = expert_counts(experts, kCount),
                     kept = kept_assignments(experts.to(at::kByte), kCount, 9);
    EXPECT_EQ(waits.counts().waits(), 0);
    EXPECT_TRUE(at::equal(experts.cpu(), want)) << groups;
    EXPECT_TRUE(at::equal(counts.cpu(), at::bincount(want.flatten(), {}, kCount)));
    const at::Tensor kept_on_host = kept_assignments(want.to(at::kByte), kCount, 9);
    EXPECT_TRUE(at::equal(kept.cpu(), kept_on_host));
    EXPECT_FALSE(kept_on_host.all().item<bool>()) << "some are dropped";
  }
}

/// Two ranks with the same tokens, of which this is the first: it receives its own rows a second time.
class TwoEqualRanks final : public ExpertRanks {
 public:
  int64_t ranks() const override { return 2; }
  Arrival begin_exchange(const at::Tensor& rows, const std::vector<int64_t>& out_rows,
                         const std::vector<int64_t>& in_rows, Among, bool) const override {
    const at::Tensor own = rows.narrow(0, 0, in_rows[0]);
    EXPECT_EQ(out_rows, std::vector<int64_t>(2, in_rows[0]));
    return [own] { return at::cat({own, own}); };
  }
};

TEST_F(ExpertsOnAccelerator, WaitOnceForNumbersOfRows) {
  const at::Tensor experts = chosen_experts(scores(), {}, {.count = kCount, .used = kUsed}),
                   x = ops::normal({kTokens, 8}, 2, at::kFloat);
  const at::Tensor experts_there = experts.to(test::accelerator()), x_there = x.to(test::accelerator());
  for (const auto& ranks : {std::make_shared<const ExpertRanks>(),
                            std::shared_ptr<const ExpertRanks>(std::make_shared<const TwoEqualRanks>())}) {
    const ExpertDispatch host(experts, {}, kCount, ranks);
    const at::Tensor want = host.dispatch(x);
    if (test::AcceleratorWaits::are_counted()) {
      test::AcceleratorWaits waits;
      const ExpertDispatch there(experts_there, {}, kCount, ranks);
      const at::Tensor rows = there.dispatch(x_there);
      EXPECT_EQ(waits.counts().waits(), 1) << ranks->ranks() << " ranks";
    }
    const ExpertDispatch there(experts_there, {}, kCount, ranks);
    EXPECT_EQ(there.ends(), host.ends());
    EXPECT_TRUE(at::equal(there.dispatch(x_there).cpu(), want)) << ranks->ranks() << " ranks";
  }
}

}  // namespace
}  // namespace colossal::nn::experts_accelerator_test
