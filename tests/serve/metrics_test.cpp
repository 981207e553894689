#include "colossal/serve/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "colossal/serve/service.h"

namespace colossal::serve::metrics_test {
namespace {

using ::testing::HasSubstr;

TEST(Metrics, WriteAllNames) {
  Metrics metrics;
  metrics.requests_running = 2;
  metrics.generated_tokens += 7;
  metrics.count_request("/v1/completions", 200);
  metrics.count_request("/v1/completions", 200);
  metrics.count_request("/v1/completions", 400);
  const std::string text = prometheus_text(metrics);
  for (const char* line :
       {"# TYPE colossal_requests_running gauge\ncolossal_requests_running 2\n", "\ncolossal_requests_waiting 0\n",
        "\ncolossal_cache_blocks 0\n", "\ncolossal_cache_blocks_used 0\n", "\ncolossal_prompt_tokens_total 0\n",
        "\ncolossal_prefix_tokens_found_total 0\n",
        "# TYPE colossal_generated_tokens_total counter\ncolossal_generated_tokens_total 7\n",
        "# TYPE colossal_first_token_seconds histogram\n", "# TYPE colossal_between_tokens_seconds histogram\n",
        "# TYPE colossal_request_seconds histogram\n", "# TYPE colossal_requests_total counter\n",
        "\ncolossal_requests_total{route=\"/v1/completions\",status=\"200\"} 2\n",
        "\ncolossal_requests_total{route=\"/v1/completions\",status=\"400\"} 1\n"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_EQ(text.back(), '\n');
}

TEST(Metrics, CountDurationsUpToEachBound) {
  Metrics metrics;
  for (const double seconds : {0.001, 0.002, 0.75, 1000.0}) metrics.request_seconds.observe(seconds);
  const std::string text = prometheus_text(metrics);
  for (const char* line :
       {"colossal_request_seconds_bucket{le=\"0.001\"} 1\n", "colossal_request_seconds_bucket{le=\"0.0025\"} 2\n",
        "colossal_request_seconds_bucket{le=\"0.5\"} 2\n", "colossal_request_seconds_bucket{le=\"1\"} 3\n",
        "colossal_request_seconds_bucket{le=\"300\"} 3\n", "colossal_request_seconds_bucket{le=\"+Inf\"} 4\n",
        "colossal_request_seconds_sum 1000.753\n", "colossal_request_seconds_count 4\n"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST(Metrics, CountInSeveralThreads) {
  Metrics metrics;
  const auto count = [&metrics] {
    for (int i = 0; i < 1000; ++i) {
      metrics.first_token_seconds.observe(1);
      metrics.count_request("/health", 200);
      ++metrics.prompt_tokens;
    }
  };
  std::thread other(count);
  count();
  other.join();
  EXPECT_EQ(metrics.first_token_seconds.counts().sum, 2000);
  EXPECT_EQ((metrics.requests().at({"/health", 200})), 2000);
  EXPECT_EQ(metrics.prompt_tokens, 2000);
}

TEST(RequestLog, WritesOneLine) {
  const RequestRecord record{.id = "3f2a",
                             .route = "/v1/completions",
                             .key = 1,
                             .status = 200,
                             .prompt_tokens = 12,
                             .found_tokens = 8,
                             .answer_tokens = 40,
                             .first_token_seconds = 0.021,
                             .seconds = 0.31,
                             .reason = "stop"};
  EXPECT_EQ(log_line(record),
            "request 3f2a /v1/completions key 1 status 200: 12 prompt tokens (8 found), 40 answer tokens, first after "
            "0.021 s, 0.310 s, stop");
}

TEST(RequestLog, WritesNoControlCharacters) {
  EXPECT_EQ(log_line({.id = "a\nb \x1b[31m", .status = 401}),
            "request a?b??[31m - key - status 401: 0 prompt tokens (0 found), 0 answer tokens, no first, 0.000 s, -");
}

}  // namespace
}  // namespace colossal::serve::metrics_test
