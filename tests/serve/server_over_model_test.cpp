// The whole server over a model: sockets, routes, the engine loop and a tiny model in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <fstream>
#include <functional>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "serve/model_server.h"
#include "serve/test_service.h"
#include "support/generated_text.h"

namespace colossal::serve_test::server_over_model_test {
namespace {

using http_test::RawConnection;
using ::testing::HasSubstr;

constexpr const char* kPath = "/v1/completions";
constexpr int kClients = 32;

class ServerOverModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TemporaryFolder>();
    test::write_model(*folder_, "llama-tiny");
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string model() { return *folder_ / "hf"; }

  template <class Condition>
  static bool wait_for(const Condition& holds) {
    return TestService::wait_for(holds);
  }

 private:
  static inline std::unique_ptr<test::TemporaryFolder> folder_;
};

/// Allows only the bytes of ASCII, so that all tokens of an answer are in its text.
std::map<int64_t, double> ascii_only() {
  std::map<int64_t, double> bias;
  for (int64_t id = 128; id <= text::ByteTokenizer::kEnd; ++id) bias[id] = -100;
  return bias;
}

Json body_of(const Json& prompt, int64_t max_tokens, const Json& more = Json::object()) {
  Json body{{"prompt", prompt}, {"max_tokens", max_tokens}, {"ignore_eos", true}, {"temperature", 0}};
  for (const auto& [id, bias] : ascii_only()) body["logit_bias"][std::to_string(id)] = bias;
  body.update(more);
  return body;
}

/// A request of one of many clients. The prompts share a prefix of 17 tokens; half of the answers are sampled.
struct Wanted {
  std::string prompt;
  infer::GenerationOptions options;
  bool streams;

  explicit Wanted(int client)
      : prompt(concat("To be, or not to ", client)),
        options{.max_tokens = 4 + client % 9,
                .sampling = {.temperature = client % 2 ? 1.0 : 0.0, .seed = client, .logit_bias = ascii_only()}},
        streams(client % 3 == 0) {}
  std::string body() const {
    const infer::SamplingOptions& sampling = options.sampling;
    return body_of(prompt, options.max_tokens,
                   {{"temperature", sampling.temperature}, {"seed", sampling.seed}, {"stream", streams}})
        .dump();
  }
};

/// Returns the texts that an engine without a server generates for all clients.
std::vector<std::string> texts_of_engine(const std::string& folder) {
  std::vector<std::string> texts;
  comm::run_ranks(1, [&](comm::World& world) {
    const distributed::ParallelConfig layout;
    comm::Mesh mesh(world, layout.axes());
    const run::SavedModel saved =
        run::load_model(folder, mesh, layout, at::kCPU, {.tokenizer = "bytes", .packing = nn::WeightPacking{}});
    for (int client = 0; client < kClients; ++client) {
      const Wanted wanted(client);
      infer::Engine engine(*saved.model, ModelServerOptions().engine);
      std::vector<int64_t> tokens;
      engine.add({.prompt = saved.tokenizer->encode_prompt(wanted.prompt), .options = wanted.options},
                 [&](const infer::Event& event) {
                   if (event.is_answer()) tokens.push_back(event.token);
                 });
      while (engine.has_work()) engine.step();
      texts.push_back(saved.tokenizer->decode(tokens));
    }
  });
  return texts;
}

/// Posts a completion and returns its text, or what was answered in its place. `usage` gets the usage of a whole
/// answer.
std::string text_of(http::Client& client, const std::string& body, Json* usage = nullptr) {
  std::string text;
  bool is_done = false;
  const http::Reply reply = client.post(kPath, body, [&](std::string_view line, http::Client::Time) {
    if (!line.starts_with("data: ")) return true;
    line.remove_prefix(6);
    is_done = line == "[DONE]";
    if (is_done) return true;
    const Json event = Json::parse(line, nullptr, false);
    text += event.contains("choices") ? event["choices"][0]["text"].get<std::string>() : event.dump();
    return true;
  });
  if (is_done) return text;
  const Json answer = Json::parse(reply.body, nullptr, false);
  if (reply.status != 200 || !answer.contains("choices")) return text + reply.body;
  if (usage) *usage = answer["usage"];
  return answer["choices"][0]["text"];
}

/// Runs `work` in a thread for each client.
class ClientThreads {
 public:
  ClientThreads(int count, const std::function<void(int)>& work) {
    for (int i = 0; i < count; ++i)
      threads_.emplace_back([work, i] {
        try {
          work(i);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "client " << i << ": " << error.what();
        }
      });
  }
  ~ClientThreads() { join(); }
  void join() {
    for (std::thread& thread : std::exchange(threads_, {})) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

TEST_F(ServerOverModel, AnswersManyClientsLikeTheEngine) {
  const std::vector<std::string> want = texts_of_engine(model());
  ModelServer server(model());
  ClientThreads(kClients, [&](int i) {
    http::Client client = server.client();
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(text_of(client, Wanted(i).body()), want[i]) << i;
  }).join();
  EXPECT_TRUE(wait_for([&] { return server.is_idle(); }));
}

/// Resources of this process that 1,000 idle connections must not use up.
struct Held {
  int64_t threads = 0, resident_bytes = 0;

  static Held now() {
    Held held;
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("Threads:")) held.threads = std::stoll(line.substr(8));
      if (line.starts_with("VmRSS:")) held.resident_bytes = std::stoll(line.substr(6)) * 1024;
    }
    return held;
  }
};

/// Returns false if this process may not open that many files.
bool may_open_files(rlim_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < count) return false;
  limit.rlim_cur = std::max(limit.rlim_cur, count);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

TEST_F(ServerOverModel, HoldsIdleConnectionsCheaply) {
  constexpr int kIdle = 1000, kFiles = 2 * (kIdle + kClients) + 200;  // both ends of a connection are in this process
  if (!may_open_files(kFiles)) GTEST_SKIP() << "the hard limit of open files is lower than " << kFiles;
  const std::vector<std::string> want = texts_of_engine(model());
  ModelServerOptions options;
  options.limits.idle_timeout = 600;
  ModelServer server(model(), options);
  std::barrier turn(kClients + 1);
  ClientThreads clients(kClients, [&](int i) {
    http::Client client = server.client();
    const std::string body = Wanted(i).body(), first = text_of(client, body);
    turn.arrive_and_wait();  // all have an answer
    turn.arrive_and_wait();  // the idle connections are open
    EXPECT_EQ(first, want[i]);
    EXPECT_EQ(text_of(client, body), want[i]);
    turn.arrive_and_wait();
    turn.arrive_and_wait();  // connections were counted
  });
  turn.arrive_and_wait();
  const Held before = Held::now();
  std::vector<std::unique_ptr<RawConnection>> idle;
  for (int i = 0; i < kIdle; ++i) idle.push_back(std::make_unique<RawConnection>(server.server.port()));
  EXPECT_TRUE(wait_for([&] { return server.server.connections() == kIdle + kClients; }));
  server.gate.close();
  turn.arrive_and_wait();
  EXPECT_TRUE(wait_for([&] { return server.server.running() == kClients; }));
  const Held beside = Held::now();
  server.gate.open();
  turn.arrive_and_wait();
  const Held after = Held::now();
  EXPECT_EQ(server.server.connections(), kIdle + kClients);
  turn.arrive_and_wait();
  for (const Held& held : {beside, after}) {
    EXPECT_EQ(held.threads, before.threads);
    EXPECT_LT(held.resident_bytes - before.resident_bytes, int64_t{64} << 20);
  }
}

/// Where a client leaves, and how.
struct Leaving {
  std::string phase;
  bool only_ends_sending = false, streams = true;
};

// Two requests of a cache for one: the first one reads its prompt in two steps and then answers, the other one waits.
TEST_F(ServerOverModel, FreesBlocksOneStepAfterAClientLeaves) {
  ModelServerOptions options;
  options.engine.max_running = 1, options.engine.step_tokens = 16;
  ModelServer server(model(), options);
  int64_t token = 4;
  for (const Leaving& leaving : {Leaving{"waiting"},
                                 {"waiting", true, false},
                                 {"reading"},
                                 {"reading", true, false},
                                 {"answering"},
                                 {"answering", true},
                                 {"answering", false, false}}) {
    SCOPED_TRACE(concat(leaving.phase, leaving.only_ends_sending ? " shutdown" : " close", leaving.streams));
    server.gate.close();
    RawConnection first(server.server.port()), second(server.server.port());
    const auto post = [&](RawConnection& connection, const std::vector<int64_t>& prompt, int64_t max_tokens,
                          int64_t waiting) {
      const Json body = body_of(prompt, max_tokens, {{"stream", leaving.streams}});
      EXPECT_TRUE(connection.send(TestService::request(kPath, body.dump())));
      EXPECT_TRUE(wait_for([&] { return server.load().waiting == waiting; }));
    };
    post(first, std::vector<int64_t>(20, ++token), 9, 1);  // no prefix of an earlier one
    post(second, {80, 81, 82}, 2, 2);
    server.gate.step();
    EXPECT_EQ(server.load().running, 1);
    EXPECT_EQ(server.load().blocks_used, 1) << "16 of 20 tokens";
    for (int i = 0; i < 3 && leaving.phase == "answering"; ++i) server.gate.step();
    if (leaving.phase == "answering" && leaving.streams) {
      EXPECT_TRUE(first.receive_until("\"text\""));
    }
    RawConnection& left = leaving.phase == "waiting" ? second : first;
    RawConnection& other = leaving.phase == "waiting" ? first : second;
    const int64_t before = server.replica().cancellations();
    if (leaving.only_ends_sending)
      left.end_sending();
    else
      left.close();
    ASSERT_TRUE(wait_for([&] { return server.replica().cancellations() == before + 1; }));
    server.gate.step();
    EXPECT_EQ(server.load().waiting, 0);
    EXPECT_EQ(server.load().running, 1) << "the other one";
    EXPECT_EQ(server.load().blocks_used, leaving.phase == "waiting" ? 2 : 1);
    server.gate.open();
    EXPECT_TRUE(other.receive_until("\"finish_reason\":\"length\""));
    EXPECT_TRUE(other.receive_until(leaving.streams ? "[DONE]" : "\"usage\""));  // after that nothing is cancelled
    EXPECT_TRUE(wait_for([&] { return server.is_idle(); }));
  }
}

TEST_F(ServerOverModel, CancelsRequestsOfSlowReaders) {
  ModelServerOptions options;
  options.attention_sinks = 4;  // answers do not end by themselves
  options.limits.unread_timeout = 0.05;
  ModelServer server(model(), options);
  const std::vector<std::string> want = texts_of_engine(model());
  RawConnection slow(server.server.port(), 4096);
  const Json more{{"stream", true}, {"n", 8}, {"logprobs", 20}};  // many bytes per step
  slow.send(TestService::request(kPath, body_of("To be", 1000000000, more).dump()));
  http::Client client = server.client();
  int64_t answers = 0;
  EXPECT_TRUE(wait_for([&] {
    EXPECT_EQ(text_of(client, Wanted(1).body()), want[1]) << "beside a slow reader";
    ++answers;
    return server.replica().cancellations() > 0;
  }));
  EXPECT_GT(answers, 0);
  EXPECT_TRUE(wait_for([&] { return server.is_idle(); }));
  EXPECT_EQ(server.replica().cancellations(), 8) << "each choice";
  EXPECT_EQ(slow.receive_all().find("[DONE]"), std::string::npos);
}

TEST_F(ServerOverModel, FindsPrefixesOfTheSameKeyOnly) {
  ModelServerOptions options;
  options.keys = {"first-key", "second-key"};
  ModelServer server(model(), options);
  const std::string body = body_of(std::vector<int64_t>(20, 5), 3).dump();
  std::string first_text;
  const auto found = [&](const std::string& key) {
    http::Client client = server.client(key);
    Json usage;
    const std::string text = text_of(client, body, &usage);
    if (first_text.empty()) first_text = text;
    EXPECT_EQ(text, first_text) << key;
    EXPECT_EQ(usage["prompt_tokens"], 20) << text;
    return usage["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
  };
  EXPECT_EQ(found("first-key"), 0);
  EXPECT_EQ(found("second-key"), 0) << "the prefix of another key";
  EXPECT_EQ(found("first-key"), 16) << "the full block of its own prompt";
  EXPECT_EQ(found("second-key"), 16);
  http::Client stranger = server.client("third-key");
  EXPECT_EQ(stranger.post(kPath, body).status, 401);
}

// A client has 200 requests in the queue when another one sends its first.
TEST_F(ServerOverModel, GivesClientsTurns) {
  ModelServerOptions options;
  options.keys = {"first-key", "second-key"};
  options.engine.max_running = 4;
  ModelServer server(model(), options);
  constexpr int kMany = 200;
  std::vector<std::unique_ptr<RawConnection>> connections;
  const auto post = [&](const std::string& key, int64_t token) {
    connections.push_back(std::make_unique<RawConnection>(server.server.port()));
    std::string request = TestService::request(kPath, body_of(std::vector<int64_t>(10, token), 4).dump());
    request.insert(request.find("\r\n") + 2, "Authorization: Bearer " + key + "\r\n");
    EXPECT_TRUE(connections.back()->send(request));
  };
  server.gate.close();
  for (int i = 0; i < kMany; ++i) post("first-key", i % 100);
  EXPECT_TRUE(wait_for([&] { return server.load().waiting == kMany; }));
  for (int i = 0; i < 3; ++i) server.gate.step();
  EXPECT_EQ(server.load().running, 4);
  post("second-key", 7);
  EXPECT_TRUE(wait_for([&] { return server.load().waiting == kMany - 4 + 1; }));
  const int64_t step = server.gate.steps();
  server.gate.open();
  for (const auto& connection : connections) EXPECT_THAT(connection->receive_answer(), HasSubstr("\"text\""));
  const std::vector<int64_t> first = server.replica().first_tokens("key 1"),
                             second = server.replica().first_tokens("key 2");
  EXPECT_EQ(first.size(), size_t{kMany});
  ASSERT_EQ(second.size(), 1U);
  EXPECT_LE(second[0], step + 1) << "within two steps: the first one ends with the number `step`";
  EXPECT_GT(std::count_if(first.begin(), first.end(), [&](int64_t own) { return own > second[0]; }), kMany / 2);
}

TEST_F(ServerOverModel, StopsUnderLoad) {
  ModelServerOptions options;
  options.attention_sinks = 4;  // answers do not end by themselves
  constexpr int kRunning = 4, kLoad = 16;
  options.engine.max_running = kRunning;
  ModelServer server(model(), options);
  std::array<std::string, kLoad> last;
  std::array<int, kLoad> statuses{};
  std::atomic<int> begun = 0;
  const auto is_stream = [](int i) { return i < kRunning || i % 2 == 0; };
  const auto ask = [&](int i) {
    http::Client client = server.client();
    bool has_begun = false;
    const Json body = body_of(concat(i), 1000000000, {{"stream", is_stream(i)}});
    const http::Reply reply = client.post(kPath, body.dump(), [&](std::string_view line, http::Client::Time) {
      if (line.starts_with("data: ")) last[i] = line;
      if (!last[i].empty() && !std::exchange(has_begun, true)) ++begun;
      return true;
    });
    statuses[i] = reply.status;
    if (last[i].empty()) last[i] = reply.body;
  };
  // Only streams show that they have begun, so the four that run are streams, and the others come later.
  ClientThreads running(kRunning, ask);
  EXPECT_TRUE(wait_for([&] { return begun == kRunning; }));
  ClientThreads waiting(kLoad - kRunning, [&](int i) { ask(kRunning + i); });
  EXPECT_TRUE(wait_for([&] {
    const serve::ReplicaLoad load = server.load();
    return load.running == kRunning && load.waiting == kLoad - kRunning;
  }));
  server.server.stop();
  running.join();
  waiting.join();
  for (int i = 0; i < kLoad; ++i) {
    EXPECT_TRUE(statuses[i] == 503 || (statuses[i] == 200 && is_stream(i))) << statuses[i];
    EXPECT_THAT(last[i], HasSubstr("{\"error\":{\"message\":\"the server is stopping")) << i;
  }
  EXPECT_TRUE(wait_for([&] { return server.is_idle(); })) << "the engine has no more work";
}

}  // namespace
}  // namespace colossal::serve_test::server_over_model_test
