// A server with all routes over a scripted replica and the byte tokenizer.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/http/client.h"
#include "colossal/http/server.h"
#include "colossal/serve/routes.h"
#include "http/raw_connection.h"
#include "serve/fake_replica.h"

namespace colossal::serve_test {

using Json = nlohmann::ordered_json;

/// The events of a stream.
struct Stream {
  int status = 0;
  bool is_complete = false;
  bool is_done = false;        ///< the last event was [DONE]
  std::vector<Json> events{};  ///< the others
  std::string body{};          ///< of an answer that is no stream

  /// Returns the texts of the events of a choice; those of chats are their contents.
  std::vector<std::string> texts(int64_t index = 0) const {
    std::vector<std::string> texts;
    for (const Json& event : events)
      for (const Json& choice : event.value("choices", Json::array()))
        if (choice["index"] == index)
          texts.push_back(choice.contains("text") ? choice["text"].get<std::string>()
                                                  : choice["delta"].value("content", ""));
    return texts;
  }
};

struct TestOptions {
  serve::ServiceOptions service{};
  std::vector<std::string> keys{};
  bool opens = true;  ///< the model is loaded
};

class TestService {
 public:
  explicit TestService(TestOptions options = {}) : service(options_of(options)) {
    server = std::make_unique<http::Server>(
        http::ServerOptions{.port = 0,
                            .limits = options.service.limits,
                            .keys = http::Keys(options.keys),
                            .on_end = [this](const http::RequestEnd& end) { service.log_end(end); }},
        serve::routes(service));
    if (!options.keys.empty()) key = options.keys[0];
    if (options.opens) service.open(model(), replica);
  }
  ~TestService() { server->stop(); }

  /// A model that continues text and embeds it. Texts of more than 80 tokens are too long to embed.
  serve::ServedModel model() {
    return {.name = "tiny",
            .created = 1700000000,
            .tokenizer = &tokenizer,
            .chat_template = &chat_template,
            .schemas = &schemas,
            .max_length = 64,
            .continues = true,
            .check_embedding = [](const std::vector<int64_t>& ids) {
              require(!ids.empty() && ids.size() <= 80, "embed", "a text must fit: got ", ids.size(), " tokens");
            }};
  }

  http::Client client() const { return http::Client({.url = server->url(), .key = key, .timeout = 60}); }
  http::Reply post(const std::string& path, const std::string& body) const { return client().post(path, body); }
  http::Reply get(const std::string& path) const { return client().get(path); }
  /// Posts and returns the answer, which must have status 200.
  Json answer(const std::string& path, const std::string& body) const {
    const http::Reply reply = post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  Stream stream(const std::string& path, const std::string& body) const {
    Stream stream;
    const http::Reply reply = client().post(path, body, [&](std::string_view line, http::Client::Time) {
      if (!line.starts_with("data: ")) return true;
      EXPECT_FALSE(stream.is_done) << line;
      line.remove_prefix(6);
      stream.is_done = line == "[DONE]";
      if (!stream.is_done) stream.events.push_back(Json::parse(line, nullptr, false));
      return true;
    });
    stream.status = reply.status, stream.is_complete = reply.is_complete, stream.body = reply.body;
    return stream;
  }
  /// Returns the bytes of a request for a RawConnection.
  static std::string request(const std::string& path, const std::string& body) {
    return concat("POST ", path,
                  " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ", body.size(),
                  "\r\n\r\n", body);
  }

  /// Waits until the condition holds. Returns false if that takes longer than the patience of the tests.
  template <class Condition>
  static bool wait_for(const Condition& holds) {
    for (int i = 0; i < http_test::kPatienceMs; ++i) {
      if (holds()) return true;  // asked once: the condition may be a request
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  /// Waits for that many lines of the log and returns them.
  std::vector<std::string> log(size_t lines) {
    const auto current = [this] {
      const std::scoped_lock lock(mutex);
      return logged;
    };
    wait_for([&] { return current().size() >= lines; });
    return current();
  }

  std::mutex mutex;  // guards `logged`
  std::vector<std::string> logged;
  text::ByteTokenizer tokenizer;
  text::ChatTemplate chat_template{
      "{% if tools %}{{ tools | length }} tools;{% endif %}"
      "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}assistant:"};
  infer::SchemaCache schemas{tokenizer, {text::ByteTokenizer::kEnd}};
  serve::Service service;
  FakeReplica replica;
  std::unique_ptr<http::Server> server;
  std::string key;

 private:
  serve::ServiceOptions options_of(const TestOptions& given) {
    serve::ServiceOptions options = given.service;
    options.defaults.options.sampling.temperature = 1;
    options.has_keys = !given.keys.empty();
    options.log = [this](const std::string& line) {
      const std::scoped_lock lock(mutex);
      logged.push_back(line);
    };
    return options;
  }
};

}  // namespace colossal::serve_test
