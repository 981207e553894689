// Requests that arrive at random times: their times and sizes match the options, and each request is completed and
// timed.
#include "colossal/infer/served_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/run/saved_model.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::served_load_test {
namespace {

TEST(ServedLoad, DrawsTheRequestedArrivals) {
  const auto arrivals = random_arrivals({.rate = 5, .requests = 4000, .prompt_tokens = 10, .new_tokens = 3}, 7);
  double prompts = 0, answers = 0, before = 0;
  for (const Arrival& arrival : arrivals) {
    EXPECT_GE(arrival.at, before);
    before = arrival.at;
    EXPECT_THAT(arrival.request.prompt, testing::Each(testing::AllOf(testing::Ge(0), testing::Lt(7))));
    EXPECT_TRUE(arrival.request.prompt.size() >= 5 && arrival.request.prompt.size() <= 15);
    EXPECT_TRUE(arrival.request.options.max_tokens >= 2 && arrival.request.options.max_tokens <= 4);
    prompts += static_cast<double>(arrival.request.prompt.size());
    answers += static_cast<double>(arrival.request.options.max_tokens);
  }
  // Standard errors: 1.6 % for the sum of 4000 exponentials, 0.5 % for uniform lengths.
  EXPECT_NEAR(before, 800, 5 * 13);
  EXPECT_NEAR(prompts / 4000, 10, 0.25);
  EXPECT_NEAR(answers / 4000, 3, 0.07);
  EXPECT_THAT(test::thrown_message([] { random_arrivals({.rate = 0}, 7); }), testing::HasSubstr("must be positive"));
}

TEST(ServedLoad, ComputesPercentilesByNearestRank) {
  const std::vector<double> values{5, 1, 4, 2, 3};
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_EQ(percentile(values, 0.5), 3);
  EXPECT_EQ(percentile(values, 0.8), 4);
  EXPECT_EQ(percentile(values, 0.81), 5);
  EXPECT_EQ(percentile(values, 1), 5);
  EXPECT_THAT(test::thrown_message([] { percentile({}, 0.5); }), testing::HasSubstr("at least one value"));
}

TEST(ServedLoad, CompletesAndTimesEveryRequest) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  comm::run_ranks(1, [&](comm::World& world) {
    const distributed::ParallelConfig layout;
    comm::Mesh mesh(world, layout.axes());
    const run::SavedModel saved = run::load_model(folder / "hf", mesh, layout, at::kCPU, {.tokenizer = "none"});
    Engine engine(*saved.model, {.cache_bytes = 1 << 20, .block_tokens = 16});
    const auto arrivals = random_arrivals({.rate = 1, .requests = 9, .prompt_tokens = 6, .new_tokens = 4}, 90);
    int64_t expected = 0;
    for (const Arrival& arrival : arrivals) expected += arrival.request.options.max_tokens;
    double clock = 0;  // each call of the clock advances it by 0.1 s
    const Served served = serve(engine, arrivals, [&] { return clock += 0.1; });
    EXPECT_EQ(served.tokens, expected);
    ASSERT_EQ(served.whole.size(), 9U);
    EXPECT_EQ(served.first_token.size(), 9U);
    EXPECT_GT(served.seconds, arrivals.back().at);
    for (size_t i = 0; i < 9; ++i) {
      EXPECT_GT(served.first_token[i], 0);
      EXPECT_GT(served.whole[i], served.first_token[i]);
    }
    // A step calls the clock twice.
    EXPECT_THAT(served.token, testing::Each(testing::DoubleNear(0.2, 1e-9)));
  });
}

}  // namespace
}  // namespace colossal::infer::served_load_test
