// `colossal serve` as a user runs it: processes, sockets and signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <limits>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/http/client.h"
#include "colossal/http/server.h"
#include "dist/serve_process.h"
#include "support/adapter_folder.h"
#include "support/generated_text.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::test::serve_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

class ServeProgram : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    write_model(*folder_, "llama-tiny");
  }
  static void TearDownTestSuite() { delete folder_; }
  static const TemporaryFolder& folder() { return *folder_; }

  static Words options(const Words& more = {}) {
    Words words{"--from", folder() / "hf", "--tokenizer", "bytes", "--kv-cache", "1MiB"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  /// A stream that does not end by itself.
  class EndlessStream {
   public:
    explicit EndlessStream(const std::string& url) : client_({.url = url, .timeout = 60}) {
      thread_ = std::thread([this] {
        const http::Reply reply = client_.post(
            "/v1/completions", R"({"prompt": "To be", "max_tokens": 1000000000, "stream": true, "ignore_eos": true})",
            [this](std::string_view line, http::Client::Time) {
              const std::lock_guard lock(mutex_);
              if (!line.empty()) last_ = line;
              ++lines_;
              return true;
            });
        status_ = reply.status;
      });
    }
    ~EndlessStream() {
      if (thread_.joinable()) thread_.join();
    }
    /// Waits for tokens.
    void begin() {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      for (int64_t lines = 0; lines < 10 && std::chrono::steady_clock::now() < deadline;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        const std::lock_guard lock(mutex_);
        lines = lines_;
      }
    }
    /// Waits for the end and returns the last line.
    std::string last() {
      thread_.join();
      EXPECT_EQ(status_, 200);
      return last_;
    }

   private:
    http::Client client_;
    std::mutex mutex_;
    std::string last_;
    int64_t lines_ = 0;
    int status_ = 0;
    std::thread thread_;
  };

  /// Options of requests that never end: tokens after the first four are dropped.
  static Words endless(const Words& more = {}) {
    Words words = options({"--attention-sinks", "4"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

 private:
  static inline TemporaryFolder* folder_ = nullptr;
};

class ServeLayouts : public ServeProgram, public testing::WithParamInterface<Words> {};

TEST_P(ServeLayouts, AnswersAsGenerateDoes) {
  const Words prompts{"To be", "or", "Hello", "not", "that is the", "question"};
  std::string lines;
  for (const std::string& prompt : prompts) lines += json{{"prompt", prompt}}.dump() + "\n";
  Words generate{program_path(), "generate",
                 "--from",       folder() / "hf",
                 "--tokenizer",  "bytes",
                 "--kv-cache",   "1MiB",
                 "--prompts",    folder().write("prompts.jsonl", lines),
                 "--max-tokens", "12",
                 "--run.device", "cpu"};
  const Finished generated = run_process({.command = generate});
  ASSERT_EQ(generated.status, 0) << generated.output;
  ServeProcess server(options(GetParam()));
  const std::string url = server.url();
  ASSERT_NE(url, "") << server.finish().output;
  std::vector<std::string> texts(prompts.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < prompts.size(); ++i)
    clients.emplace_back([&, i] {
      http::Client client({.url = url});
      const json body{{"prompt", prompts[i]}, {"max_tokens", 12}, {"temperature", 0}};
      for (int repeat = 0; repeat < 3; ++repeat) {
        const http::Reply reply = client.post("/v1/completions", body.dump());
        EXPECT_EQ(reply.status, 200) << reply.body;
        texts[i] = json::parse(reply.body).at("choices").at(0).at("text").get<std::string>();
      }
    });
  for (std::thread& client : clients) client.join();
  std::istringstream out(generated.output);
  size_t i = 0;
  for (std::string line; std::getline(out, line);) {
    if (line.empty() || line[0] != '{') continue;
    ASSERT_LT(i, texts.size());
    EXPECT_EQ(texts[i], json::parse(line).at("text").get<std::string>()) << prompts[i];
    ++i;
  }
  EXPECT_EQ(i, texts.size());
  server.send(SIGTERM);
  const Finished finished = server.finish();
  EXPECT_EQ(finished.status, 0) << finished.output;
  const std::string ranks = GetParam().empty()              ? ": hf, 1 rank, the cache holds "
                            : GetParam()[0] == "--replicas" ? ": hf, 2 replicas of 1 rank, each cache holds "
                                                            : ": hf, 2 ranks, the cache holds ";
  EXPECT_THAT(finished.output, HasSubstr("colossal: ready at " + url + ranks));
  EXPECT_THAT(finished.output, HasSubstr("/v1/completions key - status 200: 5 prompt tokens"));
  EXPECT_THAT(finished.output, Not(HasSubstr("Hello"))) << "the log has texts";
}

// Replicas in other processes, and ranks that share each matrix, have the adapters too.
TEST_P(ServeLayouts, LetsRequestsChooseAdapters) {
  const std::string poet = folder() / "poet", coder = folder() / "coder";
  write_adapters(poet, {"q_proj", "o_proj"}, 2, 1);
  write_adapters(coder, {"v_proj"}, 4, 2);
  Words words = options(GetParam());
  words.insert(words.end(), {"--adapter", "poet=" + poet, "--adapter", coder});
  ServeProcess server(words);
  const std::string url = server.url();
  ASSERT_NE(url, "") << server.finish().output;
  const Words models{"hf", "poet", "coder"};
  std::vector<std::string> texts(2 * models.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < texts.size(); ++i)
    clients.emplace_back([&, i] {
      http::Client client({.url = url});
      const json body{
          {"model", models[i % models.size()]}, {"prompt", "To be"}, {"max_tokens", 12}, {"temperature", 0}};
      const http::Reply reply = client.post("/v1/completions", body.dump());
      EXPECT_EQ(reply.status, 200) << reply.body;
      texts[i] = json::parse(reply.body).at("choices").at(0).at("text").get<std::string>();
    });
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < models.size(); ++i) EXPECT_EQ(texts[i], texts[i + models.size()]) << models[i];
  EXPECT_NE(texts[0], texts[1]);
  EXPECT_NE(texts[0], texts[2]);
  EXPECT_NE(texts[1], texts[2]);
  http::Client client({.url = url});
  EXPECT_EQ(client.post("/v1/completions", R"({"model": "any", "prompt": "To be"})").status, 404);
  server.send(SIGTERM);
  const Finished finished = server.finish();
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("colossal: ready at " + url + ": hf, 2 adapters, "));
}

TEST_P(ServeLayouts, DrainsAfterASignal) {
  ServeProcess server(endless(GetParam()));
  const std::string url = server.url();
  ASSERT_NE(url, "") << server.finish().output;
  http::Client client({.url = url, .timeout = 60});
  bool is_draining = false;
  std::string last;
  const http::Reply reply =
      client.post("/v1/completions", R"({"prompt": "To be", "max_tokens": 1000, "stream": true, "ignore_eos": true})",
                  [&](std::string_view line, http::Client::Time) {
                    if (!line.empty()) last = line;
                    if (is_draining || line.empty()) return true;
                    server.send(SIGTERM);
                    EXPECT_TRUE(server.prints("stopping: 1 request gets 30 s to end"));
                    is_draining = true;
                    http::Client other({.url = url});
                    EXPECT_EQ(other.get("/health").status, 503);
                    EXPECT_EQ(other.post("/v1/completions", R"({"prompt": "a"})").status, 503);
                    return true;
                  });
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(last, "data: [DONE]");
  const Finished finished = server.finish();
  EXPECT_EQ(finished.status, 0) << finished.output;
}

TEST_P(ServeLayouts, EndsStreamsWithAnErrorAfterTheDrain) {
  Words words = endless(GetParam());
  words.insert(words.end(), {"--drain", "0.2"});
  ServeProcess server(words);
  const std::string url = server.url();
  ASSERT_NE(url, "") << server.finish().output;
  EndlessStream stream(url);
  stream.begin();
  server.send(SIGINT);
  EXPECT_THAT(stream.last(), HasSubstr("data: {\"error\":{\"message\":\"the server is stopping"));
  const Finished finished = server.finish();
  EXPECT_EQ(finished.status, 0) << finished.output;
}

/// Returns true if SIGTERM waits in the process.
bool holds_sigterm(int process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16) >> (SIGTERM - 1) & 1;
  return false;
}

// LibTorch is loaded, or the command line is read.
TEST_P(ServeLayouts, EndsInOrderIfStoppedBeforeItListens) {
  ServeProcess server(options(GetParam()));
  EXPECT_TRUE(server.reaches(holds_sigterm));
  server.send(SIGTERM);
  const Finished finished = server.finish();
  EXPECT_EQ(finished.status, 0) << finished.output;
}

TEST_P(ServeLayouts, EndsAtOnceAfterASecondSignal) {
  ServeProcess server(endless(GetParam()));
  const std::string url = server.url();
  ASSERT_NE(url, "") << server.finish().output;
  EndlessStream stream(url);
  stream.begin();
  server.send(SIGTERM);
  EXPECT_TRUE(server.prints("stopping: 1 request"));
  server.send(SIGTERM);
  EXPECT_EQ(server.finish().status, 128 + SIGTERM);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ServeLayouts,
                         testing::Values(Words{}, Words{"--parallel.tensor=2"}, Words{"--replicas", "2"}),
                         [](const auto& info) {
                           return info.param.empty() ? "OneRank" : info.index == 1 ? "TwoRanks" : "TwoReplicas";
                         });

/// Layouts of two ranks.
class ServeKills : public ServeProgram, public testing::WithParamInterface<Words> {};

TEST_P(ServeKills, EndsStreamsWithTheErrorOfAKilledRank) {
  for (const bool drains : {false, true}) {
    ServeProcess server(endless(GetParam()));
    const std::string url = server.url();
    ASSERT_NE(url, "") << server.finish().output;
    EndlessStream first(url), second(url);
    first.begin(), second.begin();
    if (drains) {
      server.send(SIGTERM);
      EXPECT_TRUE(server.prints("stopping: 2 requests"));
    }
    const auto start = std::chrono::steady_clock::now();
    kill(server.rank(1), SIGKILL);
    for (EndlessStream* stream : {&first, &second}) {
      const std::string last = stream->last();
      EXPECT_THAT(last, HasSubstr("data: {\"error\""));
      EXPECT_THAT(last, HasSubstr("rank 1"));
    }
    const Finished finished = server.finish();
    EXPECT_EQ(finished.status, 128 + SIGKILL) << finished.output;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  }
}

TEST_P(ServeKills, EndsAnIdleServer) {
  for (const size_t rank : {0, 1}) {
    ServeProcess server(endless(GetParam()));
    ASSERT_NE(server.url(), "") << server.finish().output;
    const auto start = std::chrono::steady_clock::now();
    kill(server.rank(rank), SIGKILL);
    const Finished finished = server.finish();
    EXPECT_EQ(finished.status, 128 + SIGKILL) << finished.output;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ServeKills, testing::Values(Words{"--parallel.tensor=2"}, Words{"--replicas", "2"}),
                         [](const auto& info) { return info.index == 0 ? "TwoRanks" : "TwoReplicas"; });

TEST_F(ServeProgram, RefusesAPortInUseOnEveryLayout) {
  const http::Server other({.port = 0}, {});
  const std::string port = std::to_string(other.port());
  for (const Words& layout : {Words{}, Words{"--parallel.tensor=2"}}) {
    Words words{program_path(), "serve"};
    for (const std::string& word : options(layout)) words.push_back(word);
    words.insert(words.end(), {"--port", port, "--run.device", "cpu"});
    const Finished finished = run_process({.command = words});
    EXPECT_EQ(finished.status, 1);
    EXPECT_THAT(finished.output, HasSubstr("[serve] port " + port +
                                           " of 127.0.0.1 is in use: stop the other program, "
                                           "or choose another port with --port (0 = any free one)"));
  }
}

TEST_F(ServeProgram, DemandsKeysAndTheModelsName) {
  Words words = options({"--api-key-file", folder().write("keys", "a-key-of-ann\n"), "--name", "tiny"});
  ServeProcess server(words);
  const std::string url = server.url();
  ASSERT_NE(url, "") << server.finish().output;
  http::Client stranger({.url = url}), ann({.url = url, .key = "a-key-of-ann"});
  EXPECT_EQ(stranger.post("/v1/completions", R"({"prompt": "a"})").status, 401);
  EXPECT_EQ(stranger.get("/health").status, 200);
  EXPECT_EQ(ann.post("/v1/completions", R"({"prompt": "a", "model": "tiny"})").status, 200);
  EXPECT_EQ(ann.post("/v1/completions", R"({"prompt": "a", "model": "other"})").status, 404);
  server.send(SIGTERM);
  const Finished finished = server.finish();
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("key 1 status 200"));
  EXPECT_THAT(finished.output, Not(HasSubstr("a-key-of-ann")));
}

TEST_F(ServeProgram, LetsRequestsChooseTheAdaptersOfARun) {
  const TemporaryFolder own;
  const std::string coder = own / "coder", merged = own / "merged";
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "line " + std::to_string(i * 37 % 101) + " of a text that can be learnt\n";
  const std::string config = own.write("lora.toml", "[data]\nsequence = 24\n[training]\nbatch_size = 4\n");
  const auto done = [](const Words& words) {
    Words command{program_path()};
    command.insert(command.end(), words.begin(), words.end());
    const Finished finished = run_process({.command = command});
    EXPECT_EQ(finished.status, 0) << finished.output;
    return finished.output;
  };
  done({"train", config, "--run.folder=" + coder, "--run.device=cpu", "--model.from=" + folder() / "hf",
        "--data.path=" + own.write("text.txt", lines), "--data.tokenizer=bytes", "--adapter.kind=lora",
        "--adapter.rank=4", "--training.steps=6", "--optimizer.learning_rate=0.05", "--training.sample_tokens=0"});
  done({"export", "--from", coder, "--to", merged});
  const auto generated = [&](const std::string& from) {
    return done({"generate", "--from", from, "--tokenizer", "bytes", "--prompt", "line 1", "--max-tokens", "12",
                 "--run.device", "cpu"});
  };
  ServeProcess server(options({"--adapter", "coder=" + coder}));
  const std::string url = server.url();
  ASSERT_NE(url, "") << server.finish().output;
  http::Client client({.url = url});
  const auto answer = [&](const std::string& model) {
    const json body{{"model", model}, {"prompt", "line 1"}, {"max_tokens", 12}, {"temperature", 0}};
    const http::Reply reply = client.post("/v1/completions", body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body).at("choices").at(0).at("text").get<std::string>();
  };
  const std::string by_base = answer("hf"), by_coder = answer("coder");
  EXPECT_THAT(generated(folder() / "hf"), HasSubstr("line 1" + by_base + "\n"));
  EXPECT_THAT(generated(merged), HasSubstr("line 1" + by_coder + "\n"));
  EXPECT_NE(by_base, by_coder);
  const json models = json::parse(client.get("/v1/models").body).at("data");
  ASSERT_EQ(models.size(), 2U);
  EXPECT_EQ(models[0].at("id"), "hf");
  EXPECT_EQ(models[1].at("id"), "coder");
  EXPECT_EQ(models[1].at("parent"), "hf");
  EXPECT_EQ(client.post("/v1/completions", R"({"model": "poet", "prompt": "a"})").status, 404);
  server.send(SIGTERM);
  const Finished finished = server.finish();
  EXPECT_EQ(finished.status, 0) << finished.output;
}

TEST_F(ServeProgram, EmbedsWithABert) {
  const TemporaryFolder own;
  write_model(own, "bert-tiny");
  const Finished embedded = run_process({.command = {program_path(), "embed", "--from", own / "run", "--text", "to be",
                                                     "--normalize", "--run.device", "cpu"}});
  ASSERT_EQ(embedded.status, 0) << embedded.output;
  ServeProcess server({"--from", own / "run", "--normalize"});
  const std::string url = server.url();
  ASSERT_NE(url, "") << server.finish().output;
  http::Client client({.url = url});
  const http::Reply reply = client.post("/v1/embeddings", R"({"input": "to be"})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto got = json::parse(reply.body).at("data").at(0).at("embedding").get<std::vector<float>>();
  const auto want = json::parse(embedded.output).at("embedding").get<std::vector<float>>();
  // LibTorch's products may differ in the last bits with the place of their operands in memory. Vectors have length 1.
  const float bound = static_cast<float>(want.size()) * std::numeric_limits<float>::epsilon();
  EXPECT_THAT(got, ::testing::Pointwise(::testing::FloatNear(bound), want));
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt": "to be"})").status, 400);
  server.send(SIGTERM);
  const Finished finished = server.finish();
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr(": run, 1 rank\n"));
}

TEST_F(ServeProgram, EmbedsAsASentenceFolderSays) {
  folder().write("hf/modules.json",
                 R"([{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}])");
  folder().write("hf/1_Pooling/config.json", R"({"pooling_mode": "lasttoken"})");
  folder().write("hf/sentence_bert_config.json", R"({"max_seq_length": 8})");
  folder().write("hf/config_sentence_transformers.json", R"({"prompts": {"q": "q: "}, "default_prompt_name": "q"})");
  const Finished embedded = run_process({.command = {program_path(), "embed", "--from", folder() / "hf", "--tokenizer",
                                                     "bytes", "--text", "to be", "--run.device", "cpu"}});
  ASSERT_EQ(embedded.status, 0) << embedded.output;
  ServeProcess server(options());
  const std::string url = server.url();
  ASSERT_NE(url, "") << server.finish().output;
  http::Client client({.url = url});
  const http::Reply reply = client.post("/v1/embeddings", R"({"input": "to be"})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto got = json::parse(reply.body).at("data").at(0).at("embedding").get<std::vector<float>>();
  const auto want = json::parse(embedded.output).at("embedding").get<std::vector<float>>();
  ASSERT_EQ(got.size(), want.size());
  // The server's weights are packed, so sums over `hidden` have another order.
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4);
  const http::Reply long_one = client.post("/v1/embeddings", R"({"input": "to be or not"})");
  EXPECT_EQ(long_one.status, 400);
  EXPECT_THAT(long_one.body, HasSubstr("a text must have at most 8 tokens: got 15; shorten it"));
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt": "to be"})").status, 200);
}

}  // namespace
}  // namespace colossal::test::serve_test
