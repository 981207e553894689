#include "colossal/report/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/temporary_folder.h"

namespace colossal::report::metrics_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr int64_t kPlenty = 1 << 20;

StepMetrics step(int64_t number) {
  return {.step = number,
          .loss = 1.0 / 3 + static_cast<double>(number),
          .learning_rate = 3e-4,
          .grad_norm = 0.1,
          .tokens = 2048,
          .tokens_per_second = 12345.678,
          .peak_bytes = int64_t{3} << 40,
          .seconds = 0.25,
          .mfu = 0.4};
}

std::vector<int64_t> steps_of(const std::string& path) {
  std::vector<int64_t> numbers;
  for (const auto& metrics : read_metrics(path)) numbers.push_back(metrics.step);
  return numbers;
}

void write_steps(MetricsWriter& writer, int64_t first, int64_t last) {
  for (int64_t i = first; i <= last; ++i) writer.write(step(i));
}

TEST(Metrics, ALineHoldsTheKeysInOrder) {
  StepMetrics metrics{.step = 7,
                      .loss = 2.5,
                      .learning_rate = 0.001,
                      .grad_norm = 1,
                      .tokens = 64,
                      .tokens_per_second = 10,
                      .peak_bytes = 100,
                      .seconds = 2,
                      .mfu = 0.5};
  EXPECT_EQ(
      to_json_line(metrics),
      R"({"step":7,"loss":2.5,"learning_rate":0.001,"grad_norm":1.0,"tokens":64,"tokens_per_second":10.0,"mfu":0.5,)"
      R"("peak_bytes":100,"seconds":2.0})");
  metrics.stall_seconds = 12;
  EXPECT_THAT(to_json_line(metrics), HasSubstr(R"("seconds":2.0,"stall_seconds":12.0})"));
  metrics.stall_seconds.reset();
  metrics.tiers = TierMetrics{.host_bytes = 1, .disk_bytes = 2, .bytes_read = 3, .bytes_written = 4};
  EXPECT_THAT(to_json_line(metrics),
              HasSubstr(R"("seconds":2.0,"tiers":{"host_bytes":1,"disk_bytes":2,"bytes_read":3,"bytes_written":4}})"));
  metrics.tiers->device = DeviceMetrics{.model_bytes = 5, .peak_bytes = 6, .bytes_in = 7, .bytes_out = 8};
  EXPECT_THAT(to_json_line(metrics),
              HasSubstr(R"("bytes_written":4,"device_model_bytes":5,"device_peak_bytes":6,"device_bytes_in":7,)"
                        R"("device_bytes_out":8}})"));
  metrics.tiers.reset();
  metrics.eval_loss = 1.5;
  metrics.perplexity = 4.5;
  EXPECT_THAT(to_json_line(metrics), HasSubstr(R"("seconds":2.0,"eval_loss":1.5,"perplexity":4.5})"));
  metrics.perplexity.reset();
  metrics.accuracy = 0.25;
  EXPECT_THAT(to_json_line(metrics), HasSubstr(R"("seconds":2.0,"eval_loss":1.5,"accuracy":0.25})"));
}

TEST(Metrics, ReadBackExactly) {
  const test::TemporaryFolder folder;
  StepMetrics strange = step(2);
  strange.loss = std::numeric_limits<double>::quiet_NaN();
  strange.grad_norm = std::numeric_limits<double>::infinity();
  strange.eval_loss = -std::numeric_limits<double>::infinity();
  strange.accuracy = 0.125;
  strange.stall_seconds = 12.5;
  strange.tiers = TierMetrics{.host_bytes = int64_t{5} << 40, .bytes_written = 7};
  strange.tiers->device = DeviceMetrics{.model_bytes = 1, .peak_bytes = 2, .bytes_in = 3, .bytes_out = 4};
  {
    MetricsWriter writer(folder / "m", std::nullopt);
    writer.write(step(1));
    writer.write(strange);
  }
  const auto read = read_metrics(folder / "m");
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].loss, step(1).loss);
  EXPECT_EQ(read[0].tokens_per_second, 12345.678);
  EXPECT_EQ(read[0].peak_bytes, int64_t{3} << 40);
  EXPECT_FALSE(read[0].eval_loss);
  EXPECT_TRUE(std::isnan(read[1].loss));
  EXPECT_EQ(read[1].grad_norm, strange.grad_norm);
  EXPECT_EQ(read[1].eval_loss, strange.eval_loss);
  EXPECT_EQ(read[1].accuracy, strange.accuracy);
  EXPECT_EQ(read[1].stall_seconds, strange.stall_seconds);
  EXPECT_FALSE(read[0].tiers);
  ASSERT_TRUE(read[1].tiers);
  EXPECT_EQ(read[1].tiers->host_bytes, int64_t{5} << 40);
  EXPECT_EQ(read[1].tiers->disk_bytes, 0);
  EXPECT_EQ(read[1].tiers->bytes_written, 7);
  ASSERT_TRUE(read[1].tiers->device);
  EXPECT_EQ(read[1].tiers->device->model_bytes, 1);
  EXPECT_EQ(read[1].tiers->device->peak_bytes, 2);
  EXPECT_EQ(read[1].tiers->device->bytes_in, 3);
  EXPECT_EQ(read[1].tiers->device->bytes_out, 4);
}

TEST(Metrics, EachLineReachesTheFileAtOnce) {
  const test::TemporaryFolder folder;
  MetricsWriter writer(folder / "m", std::nullopt);
  writer.write(step(1));
  EXPECT_THAT(steps_of(folder / "m"), ElementsAre(1));
}

TEST(Metrics, ResumingDropsTheStepsBehindTheCheckpoint) {
  const test::TemporaryFolder folder;
  {
    MetricsWriter writer(folder / "m", std::nullopt);
    write_steps(writer, 1, 5);
  }
  {
    MetricsWriter writer(folder / "m", 3);
    write_steps(writer, 4, 6);
  }
  EXPECT_THAT(steps_of(folder / "m"), ElementsAre(1, 2, 3, 4, 5, 6));
  {
    MetricsWriter writer(folder / "m", 0);
  }
  EXPECT_THAT(steps_of(folder / "m"), ElementsAre());
}

TEST(Metrics, ResumingKeepsLinesAsTheyWere) {
  const test::TemporaryFolder folder;
  {
    MetricsWriter writer(folder / "m", std::nullopt);
    write_steps(writer, 1, 3);
  }
  const std::string before = read_file(folder / "m", kPlenty);
  {
    MetricsWriter writer(folder / "m", 3);
  }
  EXPECT_EQ(read_file(folder / "m", kPlenty), before);
}

TEST(Metrics, ANewRunStartsAnew) {
  const test::TemporaryFolder folder;
  {
    MetricsWriter writer(folder / "m", std::nullopt);
    write_steps(writer, 1, 5);
  }
  {
    MetricsWriter writer(folder / "m", std::nullopt);
    write_steps(writer, 1, 1);
  }
  EXPECT_THAT(steps_of(folder / "m"), ElementsAre(1));
}

TEST(Metrics, ALineCutShortByAKillIsLeftOut) {
  const test::TemporaryFolder folder;
  write_file(folder / "m", to_json_line(step(1)) + "\n" + to_json_line(step(2)).substr(0, 20));
  EXPECT_THAT(steps_of(folder / "m"), ElementsAre(1));
  {
    MetricsWriter writer(folder / "m", 1);
    writer.write(step(2));
  }
  EXPECT_THAT(steps_of(folder / "m"), ElementsAre(1, 2));
}

TEST(Metrics, ResumingWithoutAFileStartsOne) {
  const test::TemporaryFolder folder;
  {
    MetricsWriter(folder / "m", 10).write(step(11));
  }
  EXPECT_THAT(steps_of(folder / "m"), ElementsAre(11));
}

TEST(MetricsErrors, NameTheLine) {
  const test::TemporaryFolder folder;
  for (const char* bad : {"nonsense", "{}", "[1]", "3", R"({"step":"x"})", "{\"step\":1,\"loss\":\"abc\"}", "\xff",
                          R"({"step":1e999})"}) {
    write_file(folder / "m", to_json_line(step(1)) + "\n" + bad + "\n");
    try {
      read_metrics(folder / "m");
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("[metrics] " + (folder / "m") + ":2: not a line of metrics")) << bad;
    }
    EXPECT_THROW(MetricsWriter(folder / "m", 1), Error) << "would lose what it cannot read";
  }
}

TEST(MetricsErrors, UnwritableAndFullPlaces) {
  EXPECT_THROW(MetricsWriter("/nonexistent/m", std::nullopt), Error);
  if (std::filesystem::exists("/dev/full")) {
    MetricsWriter writer("/dev/full", std::nullopt);
    EXPECT_THROW(writer.write(step(1)), Error);
  }
}

}  // namespace
}  // namespace colossal::report::metrics_test
