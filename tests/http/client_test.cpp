// The client, against the server and against servers that misbehave.
#include "colossal/http/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "http/test_server.h"
#include "support/thrown_message.h"

namespace colossal::http_test {
namespace {

using http::Client;
using http::EventStream;
using http::Reply;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Client, PostsAndGetsOverOneConnection) {
  http::ServerOptions options;
  options.keys = http::Keys({"the-right-key"});
  TestServer server(options);
  Client client({.url = server->url() + "/", .key = "the-right-key"});
  const std::string body(1 << 20, 'x');
  EXPECT_EQ(client.post("/echo", body).body, body);
  const Reply reply = client.get("/name/a%2Fb");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "a/b");
  EXPECT_NE(reply.headers.find("x-request-id"), nullptr);
  EXPECT_EQ(client.get("/nothing").status, 404);
  EXPECT_EQ(server->connections(), 1);
  EXPECT_EQ(Client({.url = server->url() + "/name/"}).get("/x").status, 401);
}

TEST(Client, ReadsStreamsByLine) {
  TestServer server;
  std::thread producer([&] {
    EventStream events = (*server.held.wait())->begin_events();
    events.send("one");
    events.send("two");
    events.end();
  });
  Client client({.url = server->url()});
  std::vector<std::string> lines;
  std::vector<Client::Time> times;
  const Reply reply = client.post("/hold", "{}", [&](std::string_view line, Client::Time when) {
    if (!line.empty()) lines.emplace_back(line);
    times.push_back(when);
    return true;
  });
  producer.join();
  EXPECT_TRUE(reply.is_complete);
  EXPECT_THAT(lines, ElementsAre("data: one", "data: two"));
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_EQ(client.post("/echo", "[]", [](std::string_view, Client::Time) { return true; }).body, "[]");
}

TEST(Client, EndsAStreamEarly) {
  TestServer server;
  std::thread producer([&] { (*server.held.wait())->begin_events().send("one"); });
  Client client({.url = server->url()});
  EXPECT_FALSE(client.post("/hold", "{}", [](std::string_view, Client::Time) { return false; }).is_complete);
  producer.join();
  EXPECT_EQ(server.gone.wait(), http::Gone::kLeft);
  EXPECT_EQ(client.get("/health").status, 200);
}

TEST(Client, ReportsAStreamThatBreaksOff) {
  TestServer server;
  std::thread producer([&] {
    (*server.held.wait())->begin_events().send("one");
    server.held.clear();
  });
  Client client({.url = server->url()});
  const Reply reply = client.post("/hold", "{}", [](std::string_view, Client::Time) { return true; });
  producer.join();
  EXPECT_EQ(reply.status, 200);
  EXPECT_FALSE(reply.is_complete);
}

TEST(Client, ConnectsAgainAfterAnIdleConnectionWasClosed) {
  http::ServerOptions options;
  options.limits.idle_timeout = 0.02;
  TestServer server(options);
  Client client({.url = server->url()});
  EXPECT_EQ(client.get("/health").status, 200);
  ASSERT_TRUE(server.has_connections(0));
  EXPECT_EQ(client.get("/health").status, 200);
}

TEST(Client, ExplainsItsErrors) {
  const auto complaint_of = [](http::ClientOptions options) {
    return test::thrown_message([&] { Client(options).get("/"); });
  };
  for (const char* url : {"https://localhost", "localhost:8000", "http://", "http://:80", "http://[::1"})
    EXPECT_THAT(complaint_of({.url = url}), HasSubstr("http://HOST[:PORT][/PREFIX]: got ")) << url;
  std::string url;
  {
    TestServer server;
    url = server->url();
    EXPECT_THAT(complaint_of({.url = url + "/hold?", .timeout = 0.05}), HasSubstr("silent for 0.05 s"));
  }
  EXPECT_THAT(complaint_of({.url = url}), AllOf(HasSubstr(url), HasSubstr("is the server running?")));
}

}  // namespace
}  // namespace colossal::http_test
