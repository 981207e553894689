// The bytes of event files, decoded here by hand; tests/interop reads them with TensorBoard itself.
#include "colossal/report/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
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

TEST(Crc32c, HasThePublishedValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST(EventWriter, NamesItsFileAsTensorBoardExpects) {
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

TEST(EventWriter, AResumedRunMarksItsRestart) {
  const test::TemporaryFolder folder;
  EventWriter writer(folder.path(), 4);
  const auto all = records(writer.path());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].substr(9), std::string("\x10\x05\x3a\x02\x08\x01"));
}

TEST(EventWriter, WritesTheScalarsOfAStep) {
  const test::TemporaryFolder folder;
  EventWriter writer(folder.path());
  writer.write({.step = 1, .loss = 1});
  EXPECT_EQ(records(writer.path()).size(), 2u + 5u) << "and flushes them";
  writer.write({.step = 2, .loss = 1, .mfu = 0.5, .eval_loss = 2.0, .perplexity = 7.0});
  EXPECT_EQ(records(writer.path()).size(), 2u + 5u + 8u);
  writer.write({.step = 3, .loss = 1, .mfu = 0.5, .eval_loss = 2.0, .accuracy = 0.5});
  const auto all = records(writer.path());
  ASSERT_EQ(all.size(), 2u + 5u + 8u + 8u);
  EXPECT_NE(all.back().find("eval/accuracy"), std::string::npos);
}

TEST(EventWriter, AFolderThatIsNotThereIsAnError) { EXPECT_THROW(EventWriter("/nonexistent"), Error); }

}  // namespace
}  // namespace colossal::report::tensorboard_test
