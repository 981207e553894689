// Streams of server-sent events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "http/test_server.h"
#include "support/thrown_message.h"

namespace colossal::http_test {
namespace {

using http::EventStream;
using http::Exchange;
using http::Gone;
using http::ServerOptions;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Asks for /hold and returns the exchange.
std::shared_ptr<Exchange> hold(TestServer& server, RawConnection& client, const std::string& request = get("/hold")) {
  client.send(request);
  return server.held.wait().value();
}

TEST(EventStream, SendsChunksAndKeepsTheConnection) {
  TestServer server;
  RawConnection client(server.port());
  EventStream events = hold(server, client)->begin_events();
  EXPECT_TRUE(events.send("{\"a\": 1}"));
  ASSERT_TRUE(client.receive_until("\r\n\r\n10\r\ndata: {\"a\": 1}\n\n\r\n"));
  EXPECT_THAT(client.received, AllOf(HasSubstr("text/event-stream"), HasSubstr("Transfer-Encoding: chunked"),
                                     HasSubstr("Cache-Control: no-cache"), HasSubstr("X-Accel-Buffering: no")));
  client.received.clear();
  EXPECT_TRUE(events.send("two\nlines"));
  EXPECT_TRUE(events.comment("no\ndata"));
  events.end();
  EXPECT_FALSE(events.send("late"));
  ASSERT_TRUE(client.receive_until("0\r\n\r\n"));
  EXPECT_THAT(client.received, AllOf(HasSubstr("data: two\ndata: lines\n\n"), HasSubstr(": no data\n\n")));
  client.received.clear();
  client.send(get("/health"));
  EXPECT_THAT(client.receive_answer(), HasSubstr("200 OK"));
}

TEST(EventStream, EndsTheConnectionOfHttp10) {
  TestServer server;
  RawConnection client(server.port());
  EventStream events = hold(server, client, "GET /hold HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")->begin_events();
  events.send("x");
  events.end();
  EXPECT_THAT(client.receive_all(), AllOf(EndsWith("\r\n\r\ndata: x\n\n"), Not(HasSubstr("chunked"))));
}

TEST(EventStream, CommentsInSilence) {
  ServerOptions options;
  options.silence = 0.02;
  TestServer server(options);
  RawConnection client(server.port());
  const EventStream events = hold(server, client)->begin_events();
  EXPECT_TRUE(client.receive_until(": waiting\n\n"));
  client.received.clear();
  EXPECT_TRUE(client.receive_until(": waiting\n\n")) << "again after the next silence";
}

TEST(EventStream, NoticesClientsThatLeave) {
  for (const bool only_ends_sending : {false, true}) {
    TestServer server;
    RawConnection client(server.port());
    EventStream events = hold(server, client)->begin_events();
    events.send("x");
    ASSERT_TRUE(client.receive_until("data: x"));
    only_ends_sending ? client.end_sending() : client.close();
    EXPECT_EQ(server.gone.wait(), Gone::kLeft);
    EXPECT_TRUE(events.is_gone());
    EXPECT_FALSE(events.send("y"));
    Slot<Gone> later;
    (*server.held.wait())->when_gone([&](Gone why) { later.set(why); });
    EXPECT_EQ(later.wait(), Gone::kLeft) << "a callback that comes late is called at once";
  }
}

TEST(EventStream, GivesUpClientsThatDoNotRead) {
  ServerOptions options;
  options.limits.unread_timeout = 0.05;
  options.limits.max_unread = int64_t{1} << 40;
  TestServer server(options);
  RawConnection client(server.port(), 4096);
  EventStream events = hold(server, client)->begin_events();
  events.send(std::string(32 << 20, 'x'));  // more than the system's buffers hold
  EXPECT_EQ(server.gone.wait(), Gone::kUnread);
  EXPECT_TRUE(server.has_connections(0));
}

TEST(EventStream, LimitsUnreadBytes) {
  for (const bool reads_some : {false, true}) {
    ServerOptions options;
    options.limits.max_unread = 1 << 20;
    TestServer server(options);
    RawConnection client(server.port(), 4096);
    EventStream events = hold(server, client)->begin_events();
    const std::string piece(64 << 10, 'x');
    int64_t sent = 0;
    while (sent < (int64_t{1} << 30) && events.send(piece)) {
      sent += static_cast<int64_t>(piece.size());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a producer that lets the server write
      if (reads_some) client.receive();                           // a few of 64 KiB
    }
    EXPECT_EQ(server.gone.wait(), Gone::kUnread);
    EXPECT_EQ(events.unread_bytes(), 0);
    EXPECT_LT(sent, 128 << 20) << "the limit and the system's buffers";
  }
}

// Without the rule of max_unread each read is progress, so the server holds the answer until the client has all of it.
TEST(EventStream, GivesUpClientsThatReadLargeAnswersSlowly) {
  for (const bool is_stream : {false, true}) {
    ServerOptions options;
    options.limits.unread_timeout = 0.3;
    options.limits.max_unread = int64_t{1} << 40;
    TestServer server(options);
    RawConnection client(server.port(), 32 << 10);
    const auto exchange = hold(server, client);
    const std::string large(32 << 20, 'x');
    if (is_stream)
      exchange->begin_events().send(large);
    else
      exchange->answer({.body = large});
    while (client.receive()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(server.gone.wait(), Gone::kUnread);
    EXPECT_LT(client.received.size(), large.size());
  }
}

TEST(EventStream, SendsLargeEventsToClientsThatRead) {
  ServerOptions options;
  options.limits.max_unread = 1024;
  TestServer server(options);
  RawConnection client(server.port());
  EventStream events = hold(server, client, "GET /hold HTTP/1.0\r\n\r\n")->begin_events();
  const std::string large(8 << 20, 'x');
  events.send(large);
  events.end();
  EXPECT_THAT(client.receive_all(), EndsWith("data: " + large + "\n\n"));
}

TEST(EventStream, BreaksOffWithoutAnEnd) {
  TestServer server;
  RawConnection client(server.port());
  {
    EventStream events = hold(server, client)->begin_events();
    events.send("x");
    server.held.clear();
  }
  EXPECT_THAT(client.receive_all(), AllOf(HasSubstr("data: x"), Not(EndsWith("0\r\n\r\n"))));
}

TEST(EventStream, SendsExceptionsAsEvents) {
  TestServer server;
  RawConnection client(server.port());
  const auto exchange = hold(server, client);
  exchange->begin_events();
  exchange->post([] { throw http::RequestError({.status = 503, .message = "rank 1 has ended"}); });
  ASSERT_TRUE(client.receive_until("0\r\n\r\n"));
  EXPECT_THAT(client.received,
              AllOf(HasSubstr("data: {\"error\":{\"message\":\"rank 1 has ended\""), Not(HasSubstr("DONE"))));
  EXPECT_THAT(test::thrown_message([&] { exchange->begin_events(); }), HasSubstr("one answer"));
}

TEST(EventStream, TakesEventsFromManyThreads) {
  TestServer server;
  RawConnection client(server.port());
  EventStream events = hold(server, client, "GET /hold HTTP/1.0\r\n\r\n")->begin_events();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([events]() mutable {
      for (int j = 0; j < 500; ++j) events.send("event");
    });
  for (std::thread& thread : threads) thread.join();
  events.end();
  const std::string all = client.receive_all();
  const std::string body = all.substr(all.find("\r\n\r\n") + 4);
  std::string expected;
  for (int i = 0; i < 2000; ++i) expected += "data: event\n\n";
  EXPECT_EQ(body, expected);
}

TEST(EventStream, EndsWithAnErrorWhenTheServerStops) {
  TestServer server;
  RawConnection client(server.port());
  EventStream events = hold(server, client, "GET /hold HTTP/1.0\r\n\r\n")->begin_events();
  events.send("one");
  server->stop();
  EXPECT_EQ(server.gone.wait(), Gone::kStopped);
  EXPECT_FALSE(events.send("two"));
  const std::string all = client.receive_all();
  EXPECT_THAT(all.substr(all.find("\r\n\r\n") + 4),
              StartsWith("data: one\n\ndata: {\"error\":{\"message\":\"the server is stopping"));
  EXPECT_THAT(all, EndsWith("}\n\n"));
}

TEST(EventStream, DropsEventsAfterAnEarlyStop) {
  TestServer server;
  RawConnection client(server.port());
  const auto exchange = hold(server, client);
  server->stop();
  EXPECT_THAT(client.receive_all(), HasSubstr("503 "));
  EventStream events = exchange->begin_events();  // a handler that the stop has overtaken
  EXPECT_TRUE(events.is_gone());
  EXPECT_FALSE(events.send("late"));
  EXPECT_EQ(server.gone.wait(), Gone::kStopped);
}

/// A callback may hold a handle of its own exchange, and tasks may remain when the server stops.
TEST(EventStream, FreesCallbacksThatHoldTheirExchange) {
  const auto is_alive = std::make_shared<int>(1);
  {
    TestServer server;
    RawConnection client(server.port()), other(server.port());
    const auto exchange = hold(server, client);
    exchange->when_gone([exchange, is_alive](Gone) {});
    exchange->answer({.body = "done"});
    client.receive_answer();
    server.held.clear();
    const auto running = hold(server, other);
    running->when_gone([running, is_alive](Gone) {});
    server->stop();
    for (int i = 0; i < 3; ++i) running->post([running, is_alive] {});
  }
  EXPECT_EQ(is_alive.use_count(), 1);
}

}  // namespace
}  // namespace colossal::http_test
