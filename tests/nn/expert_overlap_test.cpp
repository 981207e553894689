// The shared expert of a mixture is computed while tokens are in transit.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/nn/expert_ranks.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/reports.h"
#include "colossal/ops/activation.h"

namespace colossal::nn::expert_overlap_test {
namespace {

using testing::ElementsAre;
using Log = std::vector<std::string>;

/// The first of two ranks. The other one sends no tokens, and zeros as results. Notes each start and each arrival.
class FirstOfTwo final : public ExpertRanks {
 public:
  explicit FirstOfTwo(Log& log) : log_(log) {}
  int64_t ranks() const override { return 2; }
  std::vector<std::string> expert_axes() const override { return {"expert"}; }
  Arrival begin_exchange(const at::Tensor& rows, const std::vector<int64_t>& out_rows,
                         const std::vector<int64_t>& in_rows, Among, bool may_round) const override {
    log_.push_back(may_round ? "start tokens" : "start");
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[0] = out_rows[0] + out_rows[1];
    at::Tensor received = at::zeros(sizes, rows.options());
    received.narrow(0, 0, out_rows[0]).copy_(rows.narrow(0, 0, in_rows[0]));
    return [this, received] {
      log_.push_back("arrival");
      return received;
    };
  }

 private:
  Log& log_;
};

TEST(ExpertOverlap, ComputesTheSharedExpertWhileTokensAreInTransit) {
  const tensor::MeshCoordinates here({{"expert", 2, 0, tensor::BatchSplit::Rows}});
  Parameters parameters(here, {.dtype = at::kDouble, .seed = 1});
  Reports reports;
  Log log;
  const ExpertOptions options{.count = 4, .used = 2, .ffn = 3, .activation = ops::activation("silu").plain};
  const auto experts = make_experts(parameters, reports, "mlp", 5, options, std::make_shared<FirstOfTwo>(log));
  const at::Tensor x = at::randn({2, 6, 5}, at::kDouble).requires_grad_();
  const at::Tensor y = experts->forward(x, {}, [&] {
    log.emplace_back("shared");
    return at::ones({2, 6, 5}, at::kDouble);
  });
  // Numbers of tokens; tokens; results.
  EXPECT_THAT(log, ElementsAre("start", "arrival", "start tokens", "shared", "arrival", "start", "arrival"));
  EXPECT_TRUE(at::equal(y - 1, experts->forward(x, {}) + 1 - 1)) << "the result of the shared expert is added";
  log.clear();
  y.sum().backward();
  EXPECT_THAT(log, ElementsAre("start", "arrival", "start", "arrival")) << "gradients of results and of tokens";
}

}  // namespace
}  // namespace colossal::nn::expert_overlap_test
