// A server's answers, connections, timeouts and end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>

#include "http/test_server.h"
#include "support/thrown_message.h"

namespace colossal::http_test {
namespace {

using http::ErrorAnswer;
using http::Exchange;
using http::Gone;
using http::RequestEnd;
using http::ServerOptions;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Server, KeepsConnectionsAlive) {
  TestServer server;
  RawConnection client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.send(post("/echo", "{\"n\": 1}", "X-Request-Id: mine\r\n"));
    EXPECT_THAT(client.receive_answer(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("X-Request-Id: mine\r\n"),
                                               EndsWith("\r\n\r\n{\"n\": 1}"), Not(HasSubstr("Connection"))));
  }
  client.send(get("/name/a%20b", "Connection: close\r\n"));
  EXPECT_THAT(client.receive_all(), AllOf(HasSubstr("Connection: close"), EndsWith("\r\n\r\na b")));
}

TEST(Server, AnswersPipelinedRequestsInOrder) {
  TestServer server;
  RawConnection client(server.port());
  std::string requests;
  for (int i = 0; i < 200; ++i) requests += post("/echo", std::to_string(i));
  client.send(requests + "\r\n");
  for (int i = 0; i < 200; ++i) EXPECT_THAT(client.receive_answer(), EndsWith("\r\n\r\n" + std::to_string(i)));
}

TEST(Server, AnswersRequestsThatArriveByteByByte) {
  TestServer server;
  RawConnection client(server.port());
  for (const char byte : post("/echo", "{}")) client.send(std::string(1, byte));
  EXPECT_THAT(client.receive_answer(), EndsWith("\r\n\r\n{}"));
}

TEST(Server, SpeaksHttp10) {
  TestServer server;
  EXPECT_THAT(server.answer_to("GET /health HTTP/1.0\r\n\r\n"), AllOf(HasSubstr("200 OK"), EndsWith("\r\n\r\nok")));
  RawConnection client(server.port());
  for (int i = 0; i < 2; ++i) {
    client.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_THAT(client.receive_answer(), HasSubstr("Connection: keep-alive"));
  }
}

TEST(Server, ReadsChunkedAndExpectedBodies) {
  TestServer server;
  RawConnection client(server.port());
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  client.send(head + "Transfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2;x=y\r\n2]\r\n0\r\nHost: trailer\r\n\r\n");
  EXPECT_THAT(client.receive_answer(), EndsWith("\r\n\r\n[1,2]"));
  client.send(head + "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(client.receive_until("100 Continue\r\n\r\n"));
  client.received.clear();
  client.send("{}");
  EXPECT_THAT(client.receive_answer(), EndsWith("\r\n\r\n{}"));
}

TEST(Server, AnswersHeadWithoutBody) {
  TestServer server;
  EXPECT_THAT(server.answer_to("HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
              AllOf(HasSubstr("Content-Length: 2\r\n"), EndsWith("\r\n\r\n")));
}

TEST(Server, AnswersExceptionsAndDroppedRequests) {
  TestServer server;
  RawConnection client(server.port());
  client.send(get("/throw"));
  EXPECT_THAT(client.receive_answer(),
              AllOf(HasSubstr("500 Internal"), HasSubstr("broken: x.bin"), HasSubstr("server_error")));
  client.send(get("/drop"));
  EXPECT_THAT(client.receive_answer(), AllOf(HasSubstr("500 Internal"), HasSubstr("without an answer")));
}

TEST(Server, RefusesBeforeTheBody) {
  ServerOptions options;
  options.keys = http::Keys({"key-number-1", "key-number-2"});
  options.limits.max_body = 100;
  TestServer server(options);
  RawConnection client(server.port());
  client.send(get("/nothing"));
  EXPECT_THAT(client.receive_answer(), AllOf(HasSubstr("401 Unauthorized"), Not(HasSubstr("Connection: close"))));
  client.send(post("/echo", "small"));
  EXPECT_THAT(client.receive_answer(), AllOf(HasSubstr("401"), Not(HasSubstr("Connection: close"))));
  const std::string key = "Authorization: Bearer key-number-2\r\n";
  client.send(get("/key", key));
  EXPECT_THAT(client.receive_answer(), EndsWith("\r\n\r\n2"));
  client.send(get("/nothing", key));
  EXPECT_THAT(client.receive_answer(), HasSubstr("404 Not Found"));
  client.send(get("/health"));
  EXPECT_THAT(client.receive_answer(), HasSubstr("200 OK"));
  client.send(post("/echo", std::string(101, ' '), key));
  EXPECT_THAT(client.receive_all(), AllOf(HasSubstr("413 "), HasSubstr("at most 100 bytes: got 101")));
}

TEST(Server, LimitsChunkedBodies) {
  ServerOptions options;
  options.limits.max_body = 100;
  TestServer server(options);
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(server.answer_to(head + "40\r\n" + std::string(64, ' ') + "\r\n40\r\n" + std::string(64, ' ') + "\r\n"),
              HasSubstr("413 "));
}

TEST(Server, LimitsHeaders) {
  ServerOptions options;
  options.limits.max_header = 2048;
  TestServer server(options);
  EXPECT_THAT(server.answer_to(get("/health", "A: " + std::string(4096, 'a') + "\r\n")), HasSubstr("431 "));
  EXPECT_THAT(server.answer_to("GET /" + std::string(4096, 'a')), HasSubstr("431 "));
  EXPECT_THAT(server.answer_to(get("/health", "Connection: close\r\nA: " + std::string(1500, 'a') + "\r\n")),
              HasSubstr("200 OK"));
}

// Each read ends inside a line, so a parser that counts the bytes of one read never sees the limit.
TEST(Server, LimitsHeadersOfManyLines) {
  ServerOptions options;
  options.limits.max_header = 4096;
  TestServer server(options);
  std::string request = "GET /" + std::string(15, 'a') + " HTTP/1.1\r\n";
  for (int i = 0; i < 2000; ++i) request += "a: 23456789abc\r\n";
  EXPECT_THAT(server.answer_to(request), HasSubstr("431 "));
}

TEST(Server, LimitsTrailersAndExtensionsOfChunks) {
  ServerOptions options;
  options.limits.max_header = 4096;
  TestServer server(options);
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  const std::string many(100000, 'a');
  EXPECT_THAT(server.answer_to(head + "0\r\nX: " + many), HasSubstr("431 "));
  EXPECT_THAT(server.answer_to(head + "1;" + many), HasSubstr("431 "));
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += "a: 23456789abc\r\n";
  EXPECT_THAT(server.answer_to(head + "0\r\n" + lines), HasSubstr("431 "));
}

// A body whose end is unknown would be read as the next request.
TEST(Server, RefusesBodiesOfUnknownLength) {
  TestServer server;
  const std::string hidden = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const std::string coding : {"gzip", "xchunked", "chunked, identity", "identity"}) {
    const std::string answer = server.answer_to(
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: " +
        coding + "\r\n\r\n" + hidden);
    EXPECT_THAT(answer, HasSubstr("400 ")) << coding;
    EXPECT_THAT(answer, Not(HasSubstr("200 "))) << coding;
  }
}

TEST(Server, RefusesCompressedTransfers) {
  TestServer server;
  EXPECT_THAT(server.answer_to("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
              AllOf(HasSubstr("400 "), HasSubstr("Transfer-Encoding")));
}

TEST(Server, TakesTargetsInAbsoluteForm) {
  TestServer server;
  const auto answer_to = [&](const std::string& target) {
    return server.answer_to("GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  };
  EXPECT_THAT(answer_to("http://localhost:80/name/a"), AllOf(HasSubstr("200 OK"), EndsWith("\r\n\r\na")));
  EXPECT_THAT(answer_to("HTTP://[::1]/health?x=/"), HasSubstr("200 OK"));
  EXPECT_THAT(answer_to("http://localhost"), HasSubstr("there is no route \\\"/\\\""));
  EXPECT_THAT(answer_to("http://evil.example/health"), AllOf(HasSubstr("403 "), HasSubstr("evil.example")));
  EXPECT_THAT(answer_to("https://localhost/health"), HasSubstr("400 "));
}

TEST(Server, EndsSlowHeadersBodiesAndIdleConnections) {
  ServerOptions options;
  options.limits.header_timeout = 0.05;
  options.limits.body_timeout = 0.05;
  options.limits.idle_timeout = 0.05;
  TestServer server(options);
  EXPECT_EQ(server.answer_to(""), "");
  EXPECT_THAT(server.answer_to("GET /health HT"), HasSubstr("408 "));
  EXPECT_THAT(server.answer_to("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               "Content-Length: 10\r\n\r\n{"),
              AllOf(HasSubstr("408 "), HasSubstr("body")));
}

TEST(Server, LimitsConnections) {
  ServerOptions options;
  options.limits.max_connections = 2;
  TestServer server(options);
  RawConnection first(server.port());
  {
    RawConnection second(server.port());
    ASSERT_TRUE(server.has_connections(2));
    EXPECT_THAT(server.answer_to(""), AllOf(HasSubstr("503 "), HasSubstr("Retry-After"), HasSubstr("2 connections")));
    second.close();
  }
  ASSERT_TRUE(server.has_connections(1));
  RawConnection third(server.port());
  third.send(get("/health"));
  EXPECT_THAT(third.receive_answer(), HasSubstr("200 OK"));
}

TEST(Server, LetsBodiesWaitForMemory) {
  ServerOptions options;
  options.limits.max_body = 200 << 10;
  options.limits.max_bodies = 200 << 10;
  TestServer server(options);
  const std::string body(150 << 10, ' ');
  std::string slow = post("/echo", body);
  RawConnection first(server.port());
  first.send(slow.substr(0, 100 << 10));
  ASSERT_TRUE(server.has_connections(1));
  std::atomic<bool> is_answered = false;
  std::thread other([&] {
    RawConnection second(server.port());
    second.send(post("/echo", body));
    EXPECT_THAT(second.receive_answer(), EndsWith(body));
    is_answered = true;
  });
  ASSERT_TRUE(server.has_connections(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(is_answered);
  first.send(slow.substr(100 << 10));
  EXPECT_THAT(first.receive_answer(), EndsWith(body));
  other.join();
}

TEST(Server, Serves500IdleConnections) {
  TestServer server;
  std::deque<RawConnection> idle;
  for (int i = 0; i < 500; ++i) idle.emplace_back(server.port());
  RawConnection active(server.port());
  active.send(get("/health"));
  EXPECT_THAT(active.receive_answer(), HasSubstr("200 OK"));
  EXPECT_TRUE(server.has_connections(501));
  idle.back().send(get("/health"));
  EXPECT_THAT(idle.back().receive_answer(), HasSubstr("200 OK"));
}

TEST(Server, NoticesClientsThatLeave) {
  const auto leaves = [](const std::string& request, bool only_ends_sending, const std::string& more) {
    TestServer server;
    RawConnection client(server.port());
    client.send(request);
    EXPECT_TRUE(server.held.wait().has_value());
    client.send(more);
    if (only_ends_sending)
      client.end_sending();
    else
      client.close();
    EXPECT_EQ(server.gone.wait(), Gone::kLeft);
    EXPECT_TRUE(server.has_connections(0));
    (*server.held.wait())->answer({.body = "late"});
    EXPECT_EQ(server->running(), 0);
  };
  leaves(get("/hold"), false, "");
  leaves(post("/hold", "{}"), true, "");
  leaves(get("/hold"), true, get("/health"));
  leaves(get("/hold"), true, std::string(64 << 10, 'x'));  // more than is read in advance
}

TEST(Server, NoticesClientsThatLeaveBeforeTheirRequestIsComplete) {
  TestServer server;
  const std::string request = post("/echo", std::string(1000, ' '));
  for (const size_t size : {size_t{0}, size_t{10}, request.size() - 1}) {
    RawConnection client(server.port());
    client.send(request.substr(0, size));
    client.close();
  }
  RawConnection last(server.port());
  last.send(get("/health"));
  EXPECT_THAT(last.receive_answer(), HasSubstr("200 OK"));
  EXPECT_TRUE(server.has_connections(1));
}

TEST(Server, ReportsEveryRequest) {
  Slot<RequestEnd> ended;
  ServerOptions options;
  options.on_end = [&](const RequestEnd& end) { ended.set(end); };
  TestServer server(options);
  RawConnection client(server.port());
  client.send(get("/name/x", "X-Request-Id: the-id\r\n"));
  client.receive_answer();
  const RequestEnd end = ended.wait().value();
  EXPECT_EQ(end.id, "the-id");
  EXPECT_EQ(end.route, "/name/*");
  EXPECT_EQ(end.status, 200);
  EXPECT_EQ(end.remote_address, "127.0.0.1");
  EXPECT_TRUE(end.is_complete);
}

TEST(Server, RefusesAPortInUse) {
  TestServer server;
  ServerOptions options;
  options.port = server.port();
  EXPECT_THAT(test::thrown_message([&] { http::Server(options, {}); }),
              AllOf(HasSubstr("is in use"), HasSubstr("--port")));
  options.host = "no.address";
  EXPECT_THAT(test::thrown_message([&] { http::Server(options, {}); }), HasSubstr("host must be an IP address"));
}

TEST(Server, AnswersQuickRoutesBesideSlowHandlers) {
  TestServer server({.workers = 2});
  std::deque<RawConnection> slow;
  for (int i = 0; i < 3; ++i) slow.emplace_back(server.port()).send(get("/wait"));
  ASSERT_TRUE(server.reaches([&] { return server->running(); }, 3));
  EXPECT_THAT(server.answer_to(get("/health", "Connection: close\r\n")), HasSubstr("200 OK"));
  server.go_on.set(true);
}

TEST(Server, RunsTasksBesideSlowHandlers) {
  TestServer server({.workers = 2});
  RawConnection client(server.port());
  client.send(get("/hold"));
  const auto exchange = server.held.wait().value();
  std::deque<RawConnection> slow;
  for (int i = 0; i < 3; ++i) slow.emplace_back(server.port()).send(get("/wait"));
  ASSERT_TRUE(server.reaches([&] { return server->running(); }, 4));
  exchange->post([exchange] { exchange->answer({.body = "written"}); });
  EXPECT_THAT(client.receive_answer(), EndsWith("written"));
  server.go_on.set(true);
}

TEST(Server, RunsLongTasksBesideSmallRequests) {
  TestServer server;
  Slot<bool> release;
  std::vector<std::unique_ptr<RawConnection>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<RawConnection>(server.port()));
    clients.back()->send(get("/hold"));
    const auto exchange = server.held.wait().value();
    server.held.clear();
    exchange->post_long([exchange, &release, fails = i == 3] {
      release.wait();
      if (fails) throw http::RequestError(400, "the schema is wrong");
      exchange->answer({.body = "long"});
    });
  }
  RawConnection other(server.port());
  other.send(post("/echo", "small"));
  EXPECT_THAT(other.receive_answer(), EndsWith("small"));
  release.set(true);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(clients[i]->receive_answer(), EndsWith("long"));
  EXPECT_THAT(clients[3]->receive_answer(), AllOf(HasSubstr("400 Bad Request"), HasSubstr("the schema is wrong")));
}

TEST(Server, DrainsAndStops) {
  TestServer server;
  RawConnection running(server.port()), stopped(server.port());
  running.send(get("/hold"));
  const auto first = server.held.wait().value();
  server->drain();
  EXPECT_FALSE(server->wait_until_idle(0.01));
  EXPECT_THAT(server.answer_to(get("/name/x")), HasSubstr("503 "));
  EXPECT_THAT(server.answer_to(get("/health")), HasSubstr("200 OK")) << "the route decides";
  first->answer({.body = "finished"});
  EXPECT_THAT(running.receive_all(), EndsWith("finished"));
  EXPECT_TRUE(server->wait_until_idle(10));
  server->stop();
  EXPECT_EQ(stopped.receive_all(), "");
  server->stop();
}

TEST(Server, StopsRunningRequests) {
  TestServer server;
  RawConnection client(server.port());
  client.send(get("/hold"));
  const auto exchange = server.held.wait().value();
  server->stop();
  EXPECT_EQ(server.gone.wait(), Gone::kStopped);
  const std::string answer = client.receive_all();
  EXPECT_THAT(answer, HasSubstr("503 Service Unavailable"));
  EXPECT_THAT(answer, HasSubstr(R"({"error":{"message":"the server is stopping)"));
  exchange->answer({.body = "late"});
  exchange->post([] { FAIL() << "a task ran after the workers have stopped"; });
}

TEST(Server, RunsTasksOfAnExchangeInOrder) {
  TestServer server;
  RawConnection client(server.port());
  client.send(get("/hold"));
  const auto exchange = server.held.wait().value();
  std::string order;  // written by tasks that run one at a time
  for (int i = 0; i < 100; ++i) exchange->post([&order, i] { order += static_cast<char>(i); });
  exchange->post([&order, exchange] { exchange->answer({.body = order}); });
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += static_cast<char>(i);
  EXPECT_THAT(client.receive_answer(), EndsWith(expected));
}

}  // namespace
}  // namespace colossal::http_test
