// A server of a tiny model with two adapters: requests that share steps get the answers that they get alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <thread>

#include "colossal/base/json.h"
#include "serve/model_server.h"
#include "serve/test_service.h"
#include "support/adapter_folder.h"
#include "support/generated_text.h"

namespace colossal::serve_test::served_adapters_test {
namespace {

constexpr const char* kPath = "/v1/completions";
constexpr int kRequests = 18;

class ServedAdapters : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TemporaryFolder>();
    test::write_model(*folder_, "llama-tiny");
    test::write_adapters(*folder_ / "poet", {"q_proj", "o_proj"}, 2, 1);
    test::write_adapters(*folder_ / "coder", {"v_proj"}, 3, 2);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string model() { return *folder_ / "hf"; }
  static std::vector<run::AdapterChoice> adapters() {
    return run::parse_adapters({"poet=" + *folder_ / "poet", "coder=" + *folder_ / "coder" + ":0.5"}, "tiny");
  }
  static ModelServerOptions options() {
    ModelServerOptions own;
    own.adapters = adapters();
    return own;
  }

 private:
  static inline std::unique_ptr<test::TemporaryFolder> folder_;
};

const char* model_of(int request) {
  constexpr std::array<const char*, 3> kModels{"tiny", "poet", "coder"};
  return kModels[request % 3];
}

/// Returns the options of a request. Half of them are sampled.
infer::GenerationOptions options_of(int request) {
  infer::GenerationOptions options{.max_tokens = 3 + request % 7,
                                   .sampling = {.temperature = request % 2 ? 1.0 : 0.0, .seed = request}};
  for (int64_t id = 128; id <= text::ByteTokenizer::kEnd; ++id) options.sampling.logit_bias[id] = -100;  // ASCII
  return options;
}

/// The prompts share a prefix of 17 tokens, more than a block.
std::string prompt_of(int request) { return concat("To be, or not to ", request / 3); }

Json body_of(int request, bool streams = false) {
  const infer::GenerationOptions options = options_of(request);
  Json body{{"model", model_of(request)},
            {"prompt", prompt_of(request)},
            {"max_tokens", options.max_tokens},
            {"temperature", options.sampling.temperature},
            {"seed", options.sampling.seed},
            {"stream", streams},
            {"ignore_eos", true}};
  for (const auto& [id, bias] : options.sampling.logit_bias) body["logit_bias"][std::to_string(id)] = bias;
  return body;
}

/// Posts a completion and returns its text, whether it is a stream or not.
std::string text_of(http::Client& client, const Json& body) {
  std::string text;
  const http::Reply reply = client.post(kPath, body.dump(), [&](std::string_view line, http::Client::Time) {
    if (!line.starts_with("data: {")) return true;
    const Json event = Json::parse(line.substr(6), nullptr, false);
    text += event.contains("choices") ? event["choices"][0]["text"].get<std::string>() : event.dump();
    return true;
  });
  if (body["stream"] == true) return text;
  const Json answer = Json::parse(reply.body, nullptr, false);
  if (reply.status != 200 || !answer.contains("choices")) return reply.body;
  EXPECT_EQ(answer["model"], body["model"]);
  return answer["choices"][0]["text"];
}

/// Returns the texts of requests, each alone in an engine. If the model has no adapters to choose from, it is that of
/// the requests.
std::vector<std::string> texts_of_engines(const std::string& folder, const run::Loading& loading,
                                          const std::vector<int>& requests) {
  std::vector<std::string> texts;
  comm::run_ranks(1, [&](comm::World& world) {
    const distributed::ParallelConfig layout;
    comm::Mesh mesh(world, layout.axes());
    const run::SavedModel saved = run::load_model(folder, mesh, layout, at::kCPU, loading);
    infer::EngineOptions options = ModelServerOptions().engine;
    options.adapters = saved.adapters;
    for (const int request : requests) {
      infer::Engine engine(*saved.model, options);
      const std::string name = model_of(request);
      std::vector<int64_t> tokens;
      engine.add({.prompt = saved.tokenizer->encode_prompt(prompt_of(request)),
                  .options = options_of(request),
                  .adapter = saved.adapters.empty() || name == "tiny" ? "" : name},
                 [&](const infer::Event& event) {
                   if (event.is_answer()) tokens.push_back(event.token);
                 });
      while (engine.has_work()) engine.step();
      texts.push_back(saved.tokenizer->decode(tokens));
    }
  });
  return texts;
}

std::vector<int> all_requests() {
  std::vector<int> requests(kRequests);
  for (int i = 0; i < kRequests; ++i) requests[i] = i;
  return requests;
}

TEST_F(ServedAdapters, AnswerRequestsTogetherAsAlone) {
  const std::vector<std::string> want = texts_of_engines(
      model(), {.tokenizer = "bytes", .named_adapters = adapters(), .packing = nn::WeightPacking{}}, all_requests());
  ModelServer server(model(), options());
  std::vector<std::thread> threads;
  for (int i = 0; i < kRequests; ++i)
    threads.emplace_back([&, i] {
      http::Client client = server.client();
      for (int repeat = 0; repeat < 2; ++repeat)
        EXPECT_EQ(text_of(client, body_of(i, (i + repeat) % 4 == 0)), want[i]) << i;
    });
  for (std::thread& thread : threads) thread.join();
}

// Requests at temperature 0, because merged weights round otherwise than adapters beside them.
TEST_F(ServedAdapters, AnswerAsTheModelsWithMergedAdapters) {
  ModelServer server(model(), options());
  http::Client client = server.client();
  std::set<std::string> texts;
  for (int model_index = 0; model_index < 3; ++model_index) {
    run::Loading loading{.tokenizer = "bytes"};
    if (model_index > 0) loading.adapter = adapters()[model_index - 1];
    const int request = 12 + model_index * 4 % 6;  // 12, 16, 14: of the models 0, 1 and 2
    ASSERT_EQ(model_of(request), model_of(model_index));
    const std::string text = text_of(client, body_of(request));
    EXPECT_EQ(text, texts_of_engines(model(), loading, {request})[0]) << model_of(request);
    texts.insert(text);
  }
  EXPECT_EQ(texts.size(), 3U) << "the adapters must change answers";
}

TEST_F(ServedAdapters, AnswerAllChoicesAndPromptsWithTheAdapter) {
  ModelServer server(model(), options());
  http::Client client = server.client();
  Json body = body_of(4);  // of poet
  const std::string alone = text_of(client, body);
  body["prompt"] = {prompt_of(4), prompt_of(0)}, body["n"] = 2;
  const Json choices = Json::parse(client.post(kPath, body.dump()).body)["choices"];
  ASSERT_EQ(choices.size(), 4U);
  EXPECT_EQ(choices[0]["text"], alone);
  EXPECT_EQ(choices[1]["text"], alone) << "at temperature 0";
  EXPECT_EQ(choices[2]["text"], choices[3]["text"]);
}

TEST_F(ServedAdapters, FindPrefixesOfTheirOwn) {
  ModelServer server(model(), options());
  http::Client client = server.client();
  const auto found = [&](const char* name) {
    Json body = body_of(0);
    body["model"] = name;
    const Json answer = Json::parse(client.post(kPath, body.dump()).body);
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
  };
  for (const char* name : {"tiny", "poet", "coder"}) EXPECT_EQ(found(name), 0) << name;
  for (const char* name : {"tiny", "poet", "coder"}) EXPECT_EQ(found(name), 16) << name;
}

TEST_F(ServedAdapters, EndAnswersAtEndTokensOfTheirOwn) {
  std::string text;
  {
    ModelServer server(model(), options());
    http::Client client = server.client();
    text = text_of(client, body_of(10));  // of poet
  }
  ASSERT_GE(text.size(), 2U);
  ModelServerOptions ending = options();
  const auto end = static_cast<unsigned char>(text.back());
  ending.adapter_end_ids = {{"poet", {end, text::ByteTokenizer::kEnd}}};
  ModelServer server(model(), ending);
  http::Client client = server.client();
  Json body = body_of(10);
  body["ignore_eos"] = false;
  Json choice = Json::parse(client.post(kPath, body.dump()).body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["text"], text.substr(0, text.find(text.back())));
  body["model"] = "tiny";
  body["logit_bias"] = {{std::to_string(end), 100}};  // the only token that the answer has
  choice = Json::parse(client.post(kPath, body.dump()).body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length") << "an end token of another adapter";
}

TEST_F(ServedAdapters, FollowSchemas) {
  ModelServerOptions ending = options();
  ending.adapter_end_ids = {{"poet", {7, text::ByteTokenizer::kEnd}}};
  ModelServer server(model(), ending);
  http::Client client = server.client();
  const Json schema{{"type", "json_schema"}, {"json_schema", {{"schema", {{"enum", {"a", 12}}}}}}};
  for (const char* name : {"poet", "coder"}) {
    const Json body{
        {"model", name}, {"prompt", "To"}, {"max_tokens", 9}, {"temperature", 0}, {"response_format", schema}};
    const Json choice = Json::parse(client.post(kPath, body.dump()).body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_TRUE(choice["text"] == "\"a\"" || choice["text"] == "12") << choice["text"];
  }
}

}  // namespace
}  // namespace colossal::serve_test::served_adapters_test
