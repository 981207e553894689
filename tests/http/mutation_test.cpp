// Requests with random faults: the server answers 2xx or 4xx, or closes the connection; it never answers 5xx, hangs or
// crashes. COLOSSAL_MUTATED_REQUESTS is the number of requests; default: 3,000.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "colossal/base/seed.h"
#include "http/test_server.h"

namespace colossal::http_test {
namespace {

/// Random numbers that follow from the seed on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  size_t below(size_t count) { return static_cast<size_t>((state_ = splitmix64(state_)) % count); }

 private:
  uint64_t state_;
};

std::string mutated(std::string bytes, Random& random) {
  static const std::vector<std::string> kPieces = {"\r\n",
                                                   "\r\n\r\n",
                                                   "\n",
                                                   "\r",
                                                   ":",
                                                   " ",
                                                   "\t",
                                                   std::string(1, '\0'),
                                                   "\xff\xfe",
                                                   "HTTP/1.1",
                                                   "HTTP/9.9",
                                                   "%00",
                                                   "Content-Length: 5\r\n",
                                                   "Content-Length: -1\r\n",
                                                   "Content-Length: 99999999999999999999\r\n",
                                                   "Transfer-Encoding: chunked\r\n",
                                                   "Transfer-Encoding: gzip, chunked\r\n",
                                                   "Expect: 100-continue\r\n",
                                                   "Host: evil\r\n",
                                                   "Connection: upgrade\r\n",
                                                   "Upgrade: websocket\r\n",
                                                   "ffffffffffffffff\r\n",
                                                   "0\r\n\r\n",
                                                   "GET / HTTP/1.1\r\n",
                                                   "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"};
  for (size_t faults = 1 + random.below(4); faults > 0; --faults) {
    const size_t at = random.below(bytes.size() + 1), count = std::min(random.below(20), bytes.size() - at);
    switch (random.below(5)) {
      case 0:
        bytes.insert(at, kPieces[random.below(kPieces.size())]);
        break;
      case 1:
        bytes.erase(at, count);
        break;
      case 2:
        bytes.insert(at, bytes.substr(at, count));
        break;
      case 3:
        bytes.insert(at, std::string(random.below(3000), static_cast<char>(random.below(256))));
        break;
      default:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random.below(256));
    }
  }
  return bytes;
}

/// Returns the statuses of the answers in what a connection received. The bodies of the test's routes may contain what
/// was sent, so only lines that the server writes after another answer count.
std::vector<int> statuses_of(const std::string& received) {
  std::vector<int> statuses;
  for (size_t at = 0; at < received.size();) {
    if (received.compare(at, 9, "HTTP/1.1 ") != 0) return {-1};
    statuses.push_back(std::stoi(received.substr(at + 9, 3)));
    const size_t body = received.find("\r\n\r\n", at), length = received.find("Content-Length: ", at);
    if (body == std::string::npos) return {-1};
    at = body + 4 + (length < body ? std::stoul(received.substr(length + 16)) : 0);
  }
  return statuses;
}

TEST(Server, SurvivesMutatedRequests) {
  http::ServerOptions options;
  options.limits.max_header = 2048;
  options.limits.max_body = 1024;
  options.limits.header_timeout = options.limits.body_timeout = options.limits.idle_timeout = 0.005;
  TestServer server(options);
  const std::vector<std::string> requests = {
      get("/health"),
      get("/name/a%20b?x=y", "Accept: */*\r\nX-Request-Id: id\r\n"),
      post("/echo", "{\"prompt\": \"text\", \"max_tokens\": 5}"),
      post("/echo", "[]", "Expect: 100-continue\r\n"),
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n",
      "GET /health HTTP/1.0\r\n\r\n"};
  Random random(20261127);
  const char* wanted = std::getenv("COLOSSAL_MUTATED_REQUESTS");
  const int count = wanted ? std::atoi(wanted) : 3000;
  int answers = 0;
  for (int i = 0; i < count; ++i) {
    std::string bytes = mutated(requests[random.below(requests.size())], random);
    if (random.below(4) == 0) bytes += requests[random.below(requests.size())];
    RawConnection client(server.port());
    const size_t cut = random.below(bytes.size() + 1);
    client.send(bytes.substr(0, cut));
    client.send(bytes.substr(cut));
    if (random.below(4) == 0) client.end_sending();
    for (const int status : statuses_of(client.receive_all())) {
      ++answers;
      EXPECT_TRUE(status == 100 || (status >= 200 && status < 500)) << "got " << status << " for " << bytes;
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(answers, count / 10) << "few requests were answered, so little was tested";
  EXPECT_TRUE(server.has_connections(0));
  RawConnection client(server.port());
  client.send(get("/health"));
  EXPECT_NE(client.receive_answer().find("200 OK"), std::string::npos);
}

}  // namespace
}  // namespace colossal::http_test
