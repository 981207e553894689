// The bytes of event files, which this test decodes by hand; tests/interop reads them with TensorBoard itself.
#include "colossal/report/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/steps.h"
#include "support/temporary_folder.h"

namespace colossal::report::tensorboard_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <class Fixed>
Fixed fixed(const std::string& bytes, size_t at) {
  Fixed value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

std::vector<std::string> records(const std::string& path) {
  const std::string bytes = read_file(path, 1 << 20);
  std::vector<std::string> all;
  for (size_t at = 0; at < bytes.size();) {
    const auto length = fixed<uint64_t>(bytes, at);
    EXPECT_EQ(fixed<uint32_t>(bytes, at + 8), masked_crc32c(bytes.substr(at, 8)));
    all.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(fixed<uint32_t>(bytes, at + 12 + length), masked_crc32c(all.back()));
    at += 16 + length;
  }
  return all;
}

TEST(Crc32c, EqualsThePublishedValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST(EventWriter, NamesTheFileForTensorBoard) {
  const test::TemporaryFolder folder;
  const EventWriter writer(folder.path());
  EXPECT_THAT(writer.path(), StartsWith(folder / "events.out.tfevents."));
}

TEST(EventWriter, StartsWithTheVersion) {
  const test::TemporaryFolder folder;
  const EventWriter writer(folder.path());
  const auto all = records(writer.path());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(all[0], HasSubstr(std::string("\x1a\x0d") + "brain.Event:2"));
  EXPECT_EQ(all[1].substr(9), std::string("\x10\x00\x3a\x02\x08\x01", 6)) << "a session that starts at step 0";
}

TEST(EventWriter, EncodesAScalar) {
  const test::TemporaryFolder folder;
  EventWriter writer(folder.path());
  writer.scalar("train/loss", 300, 2.5);
  writer.flush();
  const std::string event = records(writer.path()).at(2);
  EXPECT_EQ(event[0], 0x09);  // wall_time, eight bytes
  EXPECT_GT(fixed<double>(event, 1), 1.6e9);
  EXPECT_EQ(event.substr(9, 3), "\x10\xac\x02");  // step 300
  // 2.5f
  const std::string value = std::string("\x0a\x0a") + "train/loss" + "\x15" + std::string("\x00\x00\x20\x40", 4);
  const std::string summary = "\x0a" + std::string(1, static_cast<char>(value.size())) + value;
  EXPECT_EQ(event.substr(12), "\x2a" + std::string(1, static_cast<char>(summary.size())) + summary);
}

TEST(EventWriter, MarksTheRestartOfAResumedRun) {
  const test::TemporaryFolder folder;
  EventWriter writer(folder.path(), 4);
  const auto all = records(writer.path());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].substr(9), std::string("\x10\x05\x3a\x02\x08\x01"));
}

TEST(EventWriter, WritesTheScalarsOfAStep) {
  const test::TemporaryFolder folder;
  EventWriter writer(folder.path());
  StepMetrics metrics = test::step_of(3, {{"loss", 1.0},
                                          {"learning_rate", 1.0},
                                          {"grad_norm", 1.0},
                                          {"tokens", int64_t{1}},
                                          {"tokens_per_second", 1.0},
                                          {"mfu", 1.0},
                                          {"peak_bytes", int64_t{1}},
                                          {"seconds", 1.0},
                                          {"tiers.host_bytes", int64_t{1}},
                                          {"tiers.disk_bytes", int64_t{1}},
                                          {"tiers.bytes_read", int64_t{1}},
                                          {"tiers.bytes_written", int64_t{1}},
                                          {"tiers.device_model_bytes", int64_t{1}},
                                          {"tiers.device_peak_bytes", int64_t{1}},
                                          {"tiers.device_bytes_in", int64_t{1}},
                                          {"tiers.device_bytes_out", int64_t{1}},
                                          {"stall_seconds", 1.0},
                                          {"eval_loss", 1.0},
                                          {"perplexity", 1.0},
                                          {"accuracy", 1.0}});
  metrics.add({.name = "rmse", .value = 1});
  metrics.add({.name = "no", .value = 1, .tag = "-"});
  writer.write(metrics);
  std::vector<std::string> tags;
  const auto all = records(writer.path());
  ASSERT_GE(all.size(), 2u);
  for (size_t i = 2; i < all.size(); ++i) tags.push_back(all[i].substr(17, static_cast<unsigned char>(all[i][16])));
  EXPECT_THAT(
      tags, ElementsAre("train/loss", "train/learning_rate", "train/grad_norm", "speed/tokens_per_second", "speed/mfu",
                        "speed/peak_gigabytes", "memory/host_gigabytes", "memory/disk_gigabytes",
                        "memory/read_gigabytes", "memory/written_gigabytes", "memory/device_model_gigabytes",
                        "memory/device_peak_gigabytes", "memory/device_in_gigabytes", "memory/device_out_gigabytes",
                        "speed/stall_seconds", "eval/loss", "eval/perplexity", "eval/accuracy", "train/rmse"));
}

TEST(EventWriter, WritesBytesInTheUnitOfTheTag) {
  const test::TemporaryFolder folder;
  EventWriter writer(folder.path());
  writer.write(test::step_of(1, {{"peak_bytes", int64_t{3'000'000'000}}}));
  StepMetrics metrics(2);
  metrics.add({.name = "cache", .value = 3'000'000'000, .unit = "bytes"});
  writer.write(metrics);
  const auto all = records(writer.path());
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(fixed<float>(all[2], all[2].size() - 4), 3.0F);
  EXPECT_EQ(fixed<float>(all[3], all[3].size() - 4), 3e9F);
}

TEST(EventWriter, RefusesMissingFolders) { EXPECT_THROW(EventWriter("/nonexistent"), Error); }

}  // namespace
}  // namespace colossal::report::tensorboard_test
