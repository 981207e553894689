// An engine on a thread of its own: answers in parts, cancellations, errors, descriptors.
#include "colossal/serve/local_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cmath>
#include <filesystem>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "colossal/base/json.h"
#include "support/adapter_folder.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::serve::local_engine_test {
namespace {

using infer::FinishReason;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::chrono::seconds kLong{60};

class LocalEngineTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<test::TemporaryFolder>();
    test::write_model(*folder, "llama-tiny");
  }
  static void TearDownTestSuite() { folder.reset(); }

  static LocalEngineOptions options(const std::string& tokenizer = "") {
    return {.model = {.from = *folder / "hf", .tokenizer = tokenizer}, .engine = {.cache_bytes = 4 << 20}};
  }
  static inline std::unique_ptr<test::TemporaryFolder> folder;
};

/// Reads a request to its end.
AnswerPart whole(LocalRequest& request) {
  AnswerPart all;
  while (!all.is_last()) {
    const AnswerPart part = request.next(kLong);
    all.text += part.text;
    all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
    all.finish_reason = part.finish_reason;
  }
  return all;
}

TEST_F(LocalEngineTest, AnswersAllThreads) {
  LocalEngine engine(options("bytes"));
  const auto answer = [&engine] {
    return whole(*engine.submit(engine.prompt_ids("Hello"), engine.options(R"({"max_tokens": 12})")));
  };
  const AnswerPart wanted = answer();
  EXPECT_EQ(wanted.ids.size(), 12U);
  EXPECT_EQ(wanted.finish_reason, FinishReason::AtLength);
  EXPECT_EQ(wanted.text, text::valid_utf8(engine.tokenizer()->decode(wanted.ids)));
  std::vector<AnswerPart> found(4);
  std::vector<std::thread> threads;
  for (AnswerPart& one : found) threads.emplace_back([&one, &answer] { one = answer(); });
  for (std::thread& thread : threads) thread.join();
  for (const AnswerPart& one : found) EXPECT_EQ(one.ids, wanted.ids);
}

TEST_F(LocalEngineTest, GivesRequestsTheAdaptersThatTheyChoose) {
  test::write_adapters(*folder / "poet", {"q_proj", "o_proj"}, 2, 1);
  test::write_adapters(*folder / "coder", {"v_proj"}, 3, 2);
  const auto answer = [](LocalEngine& engine, const std::string& adapter) {
    return engine.submit({84, 111, 32}, engine.options(R"({"max_tokens": 6})"), adapter);
  };
  const auto score = [](LocalEngine& engine, const std::string& adapter) {
    auto requests = engine.score({{{84, 111}, {32, 98}}}, adapter);
    return requests.front()->next(kLong).prompt_log_probabilities.front().own;
  };
  LocalEngineOptions both = options("bytes");
  both.model.precision.mode = "fp64";  // merged weights give the same answers up to rounding
  LocalEngineOptions merged = both;
  both.adapters = {"poet=" + *folder / "poet", "coder=" + *folder / "coder"};
  LocalEngine engine(both);
  std::vector<std::unique_ptr<LocalRequest>> requests;
  for (const char* name : {"", "poet", "coder", "poem"}) requests.push_back(answer(engine, name));
  EXPECT_THAT(test::thrown_message([&] { whole(*requests[3]); }), HasSubstr("did you mean `poet`"));
  for (const std::string name : {"", "poet", "coder"}) {
    merged.model.adapters.clear();
    if (!name.empty()) merged.model.adapters.push_back(*folder / name);
    LocalEngine own(merged);
    const auto& request = requests[name.empty() ? 0 : name == "poet" ? 1 : 2];
    EXPECT_EQ(whole(*request).ids, whole(*answer(own, "")).ids) << name;
    EXPECT_NEAR(score(engine, name), score(own, ""), 1e-10) << name;
  }
  EXPECT_GT(std::abs(score(engine, "") - score(engine, "poet")), 1e-3);
  both.model.adapters = merged.model.adapters;
  EXPECT_THAT(test::thrown_message([&] { LocalEngine refused(both); }), HasSubstr("both adapter and adapters"));
}

TEST_F(LocalEngineTest, RendersChatsByTheTemplatesOfAdapters) {
  test::write_adapters(*folder / "singer", {"q_proj"}, 2, 1);
  test::write_adapters(*folder / "plain", {"v_proj"}, 2, 2);
  LocalEngineOptions both = options("bytes");
  both.adapters = {"singer=" + *folder / "singer", "plain=" + *folder / "plain"};
  LocalEngine engine(both);
  EXPECT_THAT(test::thrown_message([&] { engine.chat_template("plain"); }), HasSubstr("has no chat template"));
  folder->write("singer/chat_template.jinja", "{{ bos_token }}la");
  folder->write("hf/tokenizer_config.json", R"({"chat_template": "base", "bos_token": "<s>"})");
  EXPECT_EQ(engine.chat_template("singer").render({}).text, "<s>la");
  EXPECT_EQ(engine.chat_template("plain").render({}).text, "base");
  EXPECT_EQ(engine.chat_template().render({}).text, "base");
  both.model.adapters = {*folder / "singer"};
  both.adapters.clear();
  EXPECT_EQ(LocalEngine(both).chat_template().render({}).text, "<s>la") << "merged";
  std::filesystem::remove(*folder / "hf/tokenizer_config.json");
}

TEST_F(LocalEngineTest, TakesIdsWithoutTokenizer) {
  LocalEngine engine(options());
  EXPECT_EQ(engine.tokenizer(), nullptr);
  const AnswerPart answer = whole(*engine.submit({5, 6}, engine.options(R"({"max_tokens": 3})")));
  EXPECT_EQ(answer.ids.size(), 3U);
  EXPECT_THAT(answer.text, IsEmpty());
  EXPECT_THAT(test::thrown_message([&] { engine.prompt_ids("a"); }), HasSubstr("must be a list of token ids"));
  EXPECT_THAT(test::thrown_message([&] { engine.submit({5}, engine.options(R"({"stop": ["a"]})")); }),
              HasSubstr("stop strings need a tokenizer"));
  const auto request = engine.submit({5}, engine.options(R"({"json_schema": {"enum": [1]}})"));
  for (int reader = 0; reader < 2; ++reader)
    EXPECT_THAT(test::thrown_message([&] { whole(*request); }), HasSubstr("json_schema needs a tokenizer"));
}

TEST_F(LocalEngineTest, EndsAtStopStrings) {
  LocalEngine engine(options("bytes"));
  const std::string text =
      whole(*engine.submit(engine.prompt_ids("Hello"), engine.options(R"({"max_tokens": 30})"))).text;
  infer::GenerationOptions options = engine.options(R"({"max_tokens": 30})");
  size_t middle = text.size() / 2;
  while ((text[middle] & 0xC0) == 0x80) ++middle;  // within a character
  options.stop = {text.substr(middle)};
  const AnswerPart answer = whole(*engine.submit(engine.prompt_ids("Hello"), options));
  EXPECT_EQ(answer.finish_reason, FinishReason::AtStop);
  EXPECT_EQ(answer.text, text.substr(0, text.find(text.substr(middle))));
}

TEST_F(LocalEngineTest, CancelsAndClosesRunningRequests) {
  LocalEngine engine(options());
  const infer::GenerationOptions long_one = engine.options(R"({"max_tokens": 200})");
  const auto cancelled = engine.submit({5}, long_one), left = engine.submit({6}, long_one);
  engine.submit({7}, long_one);  // destroyed, so cancelled
  cancelled->cancel();
  EXPECT_EQ(whole(*cancelled).finish_reason, FinishReason::Cancelled);
  EXPECT_EQ(cancelled->next(kLong).finish_reason, FinishReason::Cancelled);
  engine.close();
  EXPECT_EQ(whole(*left).finish_reason, FinishReason::Cancelled);
  EXPECT_THAT(test::thrown_message([&] { engine.submit({5}, long_one); }), HasSubstr("the engine must be open"));
}

TEST_F(LocalEngineTest, ClosesOnceForSeveralThreads) {
  for (int round = 0; round < 5; ++round) {
    LocalEngine engine(options());
    std::latch together(4);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        together.arrive_and_wait();
        engine.close();
        EXPECT_THAT(test::thrown_message([&] { engine.submit({5}, {}); }), HasSubstr("the engine must be open"));
      });
    // Threads and requests are there before the latch opens, so that none of 40 requests ends by itself.
    std::vector<std::unique_ptr<LocalRequest>> requests;
    for (int i = 0; i < 40; ++i) requests.push_back(engine.submit({5}, engine.options(R"({"max_tokens": 200})")));
    together.arrive_and_wait();
    threads.clear();
    EXPECT_EQ(whole(*requests.back()).finish_reason, FinishReason::Cancelled);
  }
}

TEST_F(LocalEngineTest, MakesDescriptorsReadable) {
  LocalEngine engine(options());
  const auto request = engine.submit({5}, engine.options(R"({"max_tokens": 20})"));
  pollfd descriptor{.fd = request->descriptor(), .events = POLLIN, .revents = 0};
  size_t ids = 0;
  for (AnswerPart part; !part.is_last(); ids += part.ids.size()) {
    ASSERT_EQ(::poll(&descriptor, 1, 60000), 1);
    part = request->next(std::chrono::seconds(0));
    EXPECT_TRUE(part.is_last() || !part.is_empty());
  }
  EXPECT_EQ(ids, 20U);
  EXPECT_EQ(::poll(&descriptor, 1, 0), 1);  // for further readers
}

TEST_F(LocalEngineTest, ScoresGivenAnswersInTheirOrder) {
  LocalEngine engine(options("bytes"));
  const infer::GivenAnswer greedy{{72, 101},
                                  whole(*engine.submit({72, 101}, engine.options(R"({"max_tokens": 3})"))).ids};
  std::vector<infer::GivenAnswer> given(3, greedy);
  given[1].answer = {7};
  given[2].answer.pop_back();
  const auto requests = engine.score(given);
  ASSERT_EQ(requests.size(), 3U);
  std::vector<std::vector<double>> scores;
  for (size_t i = 0; i < requests.size(); ++i) {
    const AnswerPart part = requests[i]->next(kLong);
    EXPECT_EQ(part.finish_reason, FinishReason::AtLength);
    ASSERT_EQ(part.prompt_log_probabilities.size(), given[i].answer.size());
    scores.emplace_back();
    for (const infer::LogProbabilities& one : part.prompt_log_probabilities) scores.back().push_back(one.own);
  }
  EXPECT_LT(scores[1][0], scores[0][0]);
  EXPECT_EQ(scores[2], std::vector<double>(scores[0].begin(), scores[0].end() - 1));
  EXPECT_THAT(engine.score({}), IsEmpty());
  EXPECT_THAT(test::thrown_message([&] { engine.score({{{1}, {}}}); }), HasSubstr("at least one token each"));
  const infer::GivenAnswer texts = engine.answer_ids("1+1= ", "2");
  EXPECT_THAT(texts.prompt, testing::ElementsAre('1', '+', '1', '='));
  EXPECT_THAT(texts.answer, testing::ElementsAre(' ', '2'));
  const auto failing = engine.score({{{1}, {100'000}}});
  EXPECT_THAT(test::thrown_message([&] { failing[0]->next(kLong); }), HasSubstr("vocabulary"));
  engine.close();
  EXPECT_THAT(test::thrown_message([&] { engine.score(given); }), HasSubstr("the engine must be open"));
}

TEST_F(LocalEngineTest, ReadsOptions) {
  const LocalEngineOptions read = read_local_engine_options(
      nlohmann::json({{"from", *folder / "hf"}, {"kv_cache", "4MiB"}, {"kv_cache_dtype", "int8"}, {"device", "cpu"}})
          .dump());
  EXPECT_EQ(read.model.from, *folder / "hf");
  EXPECT_EQ(read.engine.cache_bytes, 4 << 20);
  EXPECT_EQ(read.model.cache_type, "int8");
  EXPECT_EQ(LocalEngine(read).tokenizer(), nullptr);
}

TEST_F(LocalEngineTest, RefusesWrongOptions) {
  const auto refusal = [](nlohmann::json options) {
    options.emplace("from", *folder / "hf");
    return test::thrown_message([&] { read_local_engine_options(options.dump()); });
  };
  EXPECT_THAT(refusal({{"from", "/nowhere"}}), HasSubstr("/nowhere"));
  EXPECT_THAT(refusal({{"quantize", "int3"}}),
              StartsWith("[engine] colossal generate: --quantize must be one of int8"));
  EXPECT_THAT(refusal({{"memory_disk", 3}}), StartsWith("[engine] colossal generate: --memory.disk must be a string"));
  EXPECT_THAT(refusal({{"kv_cach", "4MiB"}}), HasSubstr("unknown option kv_cach, did you mean `kv_cache`?"));
  EXPECT_THAT(refusal({{"tokenizer", "none"}}), HasSubstr("--tokenizer must be bytes"));
  EXPECT_THAT(refusal({{"group_size", 64}}),
              HasSubstr("--group-size has no effect without --quantize int8 or int4, whose groups share a scale"));
  EXPECT_THAT(refusal({{"memory_placement", "lru"}}), HasSubstr("--memory.placement has no effect without"));
  EXPECT_THAT(refusal({{"draft", *folder / "run"}, {"draft_tokens", 0}}),
              HasSubstr("--draft has no effect with --draft-tokens 0"));
  LocalEngine engine(options());
  EXPECT_THAT(test::thrown_message([&] { engine.options(R"({"top_k": 3})"); }),
              HasSubstr("no effect at temperature 0"));
  EXPECT_THAT(test::thrown_message([&] { engine.options(R"({"topk": 3})"); }), HasSubstr("topk"));
}

}  // namespace
}  // namespace colossal::serve::local_engine_test
