// Files of keys, and the checks of a request before its body.
#include "colossal/http/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/http/routes.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::http::keys_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string complaint_about(const std::string& content) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("keys", content);
  return test::thrown_message([&] { read_keys(path); });
}

TEST(Keys, ReadOneALine) {
  const test::TemporaryFolder folder;
  const Keys keys = read_keys(folder.write("keys", "# of the team\n\n  first-key \r\n#second-key\nthird-key"));
  EXPECT_EQ(keys.size(), 2);
  EXPECT_EQ(keys.number_of("first-key"), 1);
  EXPECT_EQ(keys.number_of("third-key"), 2);
  for (const char* other : {"", "first-ke", "first-keyf", "first-keyfirst-key", "third-kez", "#second-key"})
    EXPECT_EQ(keys.number_of(other), 0) << other;
}

TEST(Keys, NamesTheLineAndNotTheKey) {
  EXPECT_THAT(complaint_about("12345678\n\nsecret7\n"),
              AllOf(HasSubstr("at least 8 characters: got 7 in line 3"), Not(HasSubstr("secret7"))));
  EXPECT_THAT(complaint_about("two words-1\n"), AllOf(HasSubstr("line 1"), Not(HasSubstr("words"))));
  EXPECT_THAT(complaint_about("key-key-key\n\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4"), HasSubstr("line 2"));
  EXPECT_THAT(complaint_about("twice-twice\n\ntwice-twice\n"), AllOf(HasSubstr("line 3"), Not(HasSubstr("twice-"))));
  EXPECT_THAT(complaint_about("# nothing\n\n"), HasSubstr("at least one key"));
  EXPECT_THAT(test::thrown_message([] { read_keys("/no/such/keys"); }), HasSubstr("/no/such/keys"));
}

const Handler kNoHandler = [](const Request&, Exchange) {};
const std::vector<Route> kRoutes = {{"GET", "/open", kNoHandler, false, true},
                                    {"POST", "/v1/models", kNoHandler},
                                    {"GET", "/v1/models", kNoHandler},
                                    {"GET", "/v1/models/*", kNoHandler},
                                    {"GET", "/v1/models/exact", kNoHandler}};

Request request_of(const std::string& method, const std::string& path) {
  Request request{.method = method, .path = path};
  request.headers.add("host", "localhost:8000");
  request.headers.add("AUTHORIZATION", "bearer long-enough");
  request.headers.add("Content-Type", "Application/JSON; charset=utf-8");
  return request;
}

const Admission kAdmission{Keys({"other-key", "long-enough"}), {"Proxy.example"}, true};

int status_of(const Admitted& admitted) { return admitted.refusal ? admitted.refusal->status : 200; }
int status_of(const Request& request, bool is_draining = false) {
  return status_of(admit(request, false, is_draining, kRoutes, kAdmission));
}

TEST(Admit, FindsTheRoute) {
  const auto path_of = [](const char* method, const char* path) {
    const Admitted admitted = admit(request_of(method, path), false, false, kRoutes, kAdmission);
    return admitted.route ? admitted.route->method + admitted.route->path + " " + admitted.rest : "";
  };
  EXPECT_EQ(path_of("POST", "/v1/models"), "POST/v1/models ");
  EXPECT_EQ(path_of("HEAD", "/v1/models"), "GET/v1/models ");
  EXPECT_EQ(path_of("GET", "/v1/models/exact"), "GET/v1/models/exact ");
  EXPECT_EQ(path_of("GET", "/v1/models/a%2Fb/c%"), "GET/v1/models/* a/b/c%");
  EXPECT_EQ(path_of("GET", "/v1/models/"), "");
  EXPECT_EQ(admit(request_of("GET", "/v1/models"), false, false, kRoutes, kAdmission).key, 2);
}

TEST(Admit, RefusesInOrder) {
  Request request = request_of("PUT", "/nothing");
  request.headers.fields[1].second = "Bearer wrong-key";
  request.headers.fields[0].second = "rebound.example";
  EXPECT_EQ(status_of(request), 403);
  request.headers.fields[0].second = "localhost";
  EXPECT_EQ(status_of(request), 401) << "before the route is looked at";
  request.headers.fields[1].second = "Bearer other-key";
  EXPECT_EQ(status_of(request), 404);
  request.path = "/v1/models";
  const Admitted wrong_method = admit(request, false, false, kRoutes, kAdmission);
  EXPECT_EQ(status_of(wrong_method), 405);
  EXPECT_EQ(*wrong_method.refusal->headers.find("allow"), "POST, GET");
  request.method = "POST";
  request.headers.fields[2].second = "text/plain";
  EXPECT_EQ(status_of(request, true), 503);
  const Admitted wrong_type = admit(request, false, false, kRoutes, kAdmission);
  EXPECT_EQ(status_of(wrong_type), 415);
  EXPECT_THAT(wrong_type.refusal->body, HasSubstr("-H 'Content-Type: application/json'"));
  request.headers.fields[2].second = "application/json";
  request.headers.add("Content-Encoding", "gzip");
  const Admitted compressed = admit(request, false, false, kRoutes, kAdmission);
  EXPECT_EQ(status_of(compressed), 415);
  EXPECT_THAT(compressed.refusal->body, HasSubstr("must not be compressed"));
}

TEST(Admit, OpensRoutesWithoutKey) {
  Request request = request_of("GET", "/open");
  request.headers.fields[1].second = "";
  EXPECT_EQ(status_of(request), 200);
  EXPECT_EQ(status_of(request, true), 200);
  request.path = "/v1/models";
  EXPECT_EQ(status_of(request), 401);
}

TEST(Admit, DistinguishesAWrongKeyFromNone) {
  Request request = request_of("GET", "/v1/models");
  const auto message = [&] { return admit(request, false, false, kRoutes, kAdmission).refusal->body; };
  request.headers.fields[1].second = "Bearer wrong-key";
  EXPECT_THAT(message(), AllOf(HasSubstr("must have a key of this server"), Not(HasSubstr("wrong-key"))));
  request.headers.fields.erase(request.headers.fields.begin() + 1);
  EXPECT_THAT(message(), HasSubstr("a key is needed"));
}

TEST(Admit, ChecksTheHost) {
  Request request = request_of("GET", "/open");
  const auto status_with = [&](const char* host) {
    request.headers.fields[0].second = host;
    return status_of(request);
  };
  for (const char* host : {"localhost", "LocalHost:1", "localhost.", "127.0.0.1", "127.8.9.10:80", "[::1]", "[::1]:80",
                           "proxy.example", "PROXY.example:443"})
    EXPECT_EQ(status_with(host), 200) << host;
  for (const char* host :
       {"", ":80", "128.0.0.1", "127.0.0.1.example", "localhost.example", "[::2]", "[", "[::1", "[::1]example",
        "[::1]:example", "localhost:80:example", "localhost:example", "example", "0.0.0.0"})
    EXPECT_EQ(status_with(host), 403) << host;
  request.headers.add("Host", "localhost");
  EXPECT_EQ(status_with("localhost"), 400) << "two hosts";
  request.headers.fields.erase(request.headers.fields.end() - 1);
  request.headers.fields.erase(request.headers.fields.begin());
  EXPECT_EQ(status_of(request), 400) << "no host";
  EXPECT_EQ(status_of(admit(request, true, false, kRoutes, kAdmission)), 200) << "HTTP/1.0 has none";
}

}  // namespace
}  // namespace colossal::http::keys_test
