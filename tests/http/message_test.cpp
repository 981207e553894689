// The parts of messages, limits as options, the memory of bodies.
#include "colossal/http/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <set>

#include "colossal/http/body_memory.h"
#include "colossal/http/error_answer.h"
#include "colossal/http/limits.h"
#include "support/thrown_message.h"

namespace colossal::http::message_test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(Message, DecodesPercents) {
  EXPECT_EQ(percent_decoded("a%2Fb%c3%A4+%"), "a/b\xc3\xa4+%");
  EXPECT_EQ(percent_decoded("%4"), "%4");
  EXPECT_EQ(percent_decoded("%zz%41"), "%zzA");
}

TEST(Message, KeepsHarmlessIds) {
  const auto id_of = [](const std::string& sent) { return request_id(&sent); };
  EXPECT_EQ(id_of("run-1_a.b:C"), "run-1_a.b:C");
  EXPECT_EQ(id_of("a\r\nb \"c\""), "abc");
  EXPECT_EQ(id_of(std::string(100, 'x')), std::string(64, 'x'));
  EXPECT_THAT(id_of("\n"), MatchesRegex("[0-9a-f]+"));
  std::set<std::string> random;
  for (int i = 0; i < 100; ++i) random.insert(request_id(nullptr));
  EXPECT_EQ(random.size(), 100u);
  EXPECT_EQ(random.begin()->size(), 32u);
}

TEST(Message, WritesErrorsInTheirForm) {
  EXPECT_EQ(error_json({.message = "temperature must be a number: got \"hot\"", .param = "temperature"}),
            R"({"error":{"message":"temperature must be a number: got \"hot\"","type":"invalid_request_error",)"
            R"("param":"temperature","code":null}})");
  EXPECT_THAT(error_json({.status = 429, .code = "full"}),
              HasSubstr(R"("rate_limit_error","param":null,"code":"full")"));
  EXPECT_THAT(error_json({.status = 503, .message = "bad \xff byte"}), HasSubstr("server_error"));
  EXPECT_NE(error_response({.status = 503}).headers.find("retry-after"), nullptr);
  EXPECT_NE(error_response({.status = 401}).headers.find("WWW-Authenticate"), nullptr);
}

TEST(Limits, NeedRoomForOneBody) {
  ServerLimits limits;
  limits.check();
  limits.max_bodies = limits.max_body - 1;
  EXPECT_THAT(test::thrown_message([&] { limits.check(); }),
              HasSubstr("max_bodies must be at least max_body, 8MiB: got"));
}

TEST(Limits, FitTheOpenFiles) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 128;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  ServerLimits limits;
  limits.max_connections = 300;
  EXPECT_EQ(fit_open_files(limits), "");
  EXPECT_EQ(limits.max_connections, 300);
  rlimit raised{};
  getrlimit(RLIMIT_NOFILE, &raised);
  EXPECT_GE(raised.rlim_cur, 300u);
  const auto hard = static_cast<int64_t>(before.rlim_max);
  if (before.rlim_max != RLIM_INFINITY && hard < (1 << 28)) {
    limits.max_connections = hard;
    EXPECT_THAT(fit_open_files(limits), HasSubstr("instead of " + std::to_string(hard)));
    EXPECT_LT(limits.max_connections, hard);
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(BodyMemory, LetsTheFirstReaderFinish) {
  BodyMemory memory(100, 40);
  const int64_t first = memory.begin(), second = memory.begin();
  EXPECT_TRUE(memory.take(second, 60));
  EXPECT_FALSE(memory.take(second, 1)) << "the rest is kept for the first reader";
  EXPECT_TRUE(memory.take(first, 40));
  EXPECT_FALSE(memory.take(first, 1)) << "never more than all of it";
  memory.end(first);
  EXPECT_FALSE(memory.take(second, 1)) << "bytes remain taken after the body is complete";
  memory.release(40);
  EXPECT_TRUE(memory.take(second, 40));
  EXPECT_EQ(memory.taken(), 100);
}

TEST(ErrorAnswer, KeepsTheLastPartOfPaths) {
  EXPECT_EQ(without_folders("cannot open \"/srv/a b/x.bin\": ../q/y, (~/z/) and /w"),
            "cannot open \"a b/x.bin\": y, (z/) and w");
  EXPECT_EQ(without_folders("and/or 1 / 2, #/properties/a, http://host/a"),
            "and/or 1 / 2, #/properties/a, http://host/a");
}

}  // namespace
}  // namespace colossal::http::message_test
