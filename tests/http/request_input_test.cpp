// Requests of one connection, from bytes in any pieces.
#include "colossal/http/request_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace colossal::http_test::request_input_test {
namespace {

using http::RequestInput;
using http::ServerLimits;
using ::testing::HasSubstr;

constexpr const char* kHeader = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n";

TEST(RequestInput, ReadsRequestsInPieces) {
  const std::string two = std::string("\r\n") + kHeader + "first" + kHeader + "other";
  for (const size_t piece : {1, 7, 1000}) {
    const ServerLimits limits;
    RequestInput input(limits);
    std::vector<std::string> bodies;
    bool has_begun = false;
    for (size_t at = 0; at < two.size(); at += piece) {
      input.add(std::string_view(two).substr(at, piece));
      while (has_begun || input.begin()) {
        has_begun = true;
        EXPECT_FALSE(input.parse());
        if (input.has_header() && !input.is_complete()) {
          input.begin_body();
          EXPECT_FALSE(input.parse());
        }
        if (!input.is_complete()) break;
        bodies.push_back(input.take().body);
        input.end();
        has_begun = false;
      }
    }
    EXPECT_THAT(bodies, ::testing::ElementsAre("first", "other")) << "pieces of " << piece;
    EXPECT_EQ(input.held(), 0u);
  }
}

TEST(RequestInput, StopsAfterTheHeaders) {
  const ServerLimits limits;
  RequestInput input(limits);
  EXPECT_FALSE(input.begin());
  input.add(std::string(kHeader) + "body!next");
  ASSERT_TRUE(input.begin());
  EXPECT_FALSE(input.parse());
  EXPECT_TRUE(input.has_header() && input.keeps_alive() && !input.is_complete());
  EXPECT_EQ(input.target(), "/echo");
  EXPECT_EQ(input.content_length(), 5u);
  EXPECT_EQ(input.held(), 9u);
  EXPECT_TRUE(input.skip_body());
  EXPECT_EQ(input.held(), 4u) << "the next request";
}

TEST(RequestInput, KeepsAPartOfABodyThatIsRefused) {
  const ServerLimits limits;
  RequestInput input(limits);
  input.add(std::string(kHeader) + "bod");
  ASSERT_TRUE(input.begin());
  EXPECT_FALSE(input.parse());
  EXPECT_FALSE(input.skip_body());
}

TEST(RequestInput, RefusesFoldedHeaders) {
  const auto refusal_of = [](const std::string& bytes, size_t piece) {
    const ServerLimits limits;
    RequestInput input(limits);
    std::optional<http::ErrorAnswer> refusal;
    for (size_t at = 0; at < bytes.size() && !refusal; at += piece) {
      input.add(std::string_view(bytes).substr(at, piece));
      if (at == 0) EXPECT_TRUE(input.begin());
      refusal = input.parse();
      if (!refusal && input.has_header()) input.begin_body(), refusal = input.parse();
    }
    return refusal.value_or(http::ErrorAnswer{.status = 200});
  };
  const std::string begin = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n", end = "\r\n\r\nb\r\n b\n";
  for (const size_t piece : {1, 5, 1000}) {
    for (const char* fold : {"A: b\r\n c", "A: b\r\n\tc", "A:\r\n b", "A: b\r\n \r\nB: c"}) {
      const http::ErrorAnswer refusal = refusal_of(begin + fold + end, piece);
      EXPECT_EQ(refusal.status, 400) << fold;
      EXPECT_THAT(refusal.message, HasSubstr("a header must be on one line")) << fold << " in pieces of " << piece;
    }
    EXPECT_EQ(refusal_of(begin + "A: b \tc" + end, piece).status, 200) << "the body may have such lines";
    EXPECT_EQ(refusal_of("GET / HTTP/1.1\r\n Host: a\r\n\r\n", piece).status, 400);
  }
}

TEST(RequestInput, RefusesBytesBeyondTheLimits) {
  ServerLimits limits;
  limits.max_header = 64;
  limits.max_body = 8;
  const auto refusal_of = [&limits](const std::string& bytes) {
    RequestInput input(limits);
    input.add(bytes);
    EXPECT_TRUE(input.begin());
    auto refusal = input.parse();
    if (!refusal && input.has_header()) input.begin_body(), refusal = input.parse();
    return refusal.value_or(http::ErrorAnswer{.status = 200});
  };
  EXPECT_EQ(refusal_of("GET / HTTP/1.1\r\nA: b\r\n\r\n").status, 200);
  EXPECT_EQ(refusal_of("GET / HTTP/1.1\r\nA: " + std::string(64, 'b') + "\r\n\r\n").status, 431);
  EXPECT_EQ(refusal_of("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n").status, 413);
  const std::string chunked = "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* size : {"9", "ffffffffffffffff"})  // before the bytes arrive
    EXPECT_EQ(refusal_of(chunked + size + "\r\n1").status, 413);
  EXPECT_THAT(refusal_of("not HTTP\r\n\r\n").message, HasSubstr("the request must be HTTP/1.1 or HTTP/1.0"));
}

}  // namespace
}  // namespace colossal::http_test::request_input_test
