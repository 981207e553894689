// Conversations: the request has the text that the template renders, replies become messages, and a failed request
// changes no message.
#include "colossal/infer/prompts/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/generate.h"
#include "colossal/run/saved_model.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::conversation_test {
namespace {

using testing::HasSubstr;

constexpr char kTemplate[] =
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

class Conversation : public testing::Test {
 protected:
  void SetUp() override { test::write_model(folder, "llama-tiny"); }

  void with_model(const std::function<void(const run::SavedModel&)>& work, int64_t tensor = 1) {
    comm::run_ranks(static_cast<int>(tensor), [&](comm::World& world) {
      const distributed::ParallelConfig layout{.tensor = {.size = tensor}};
      comm::Mesh mesh(world, layout.axes());
      work(run::load_model(folder / "hf", mesh, layout, at::kCPU, {.tokenizer = "bytes"}));
    });
  }

  test::TemporaryFolder folder;
  const text::ChatTemplate chat_template{kTemplate};
};

std::string continued(const run::SavedModel& saved, const std::string& prompt, int64_t tokens) {
  return text::valid_utf8(saved.tokenizer->decode(
      generate(*saved.model, {.prompt = saved.tokenizer->encode(prompt), .options = {.max_tokens = tokens}})));
}

TEST_F(Conversation, SendsTheRenderedTemplate) {
  for (const int64_t tensor : {1, 2})
    with_model(
        [&](const run::SavedModel& saved) {
          infer::Engine engine(*saved.model, {.cache_bytes = 1 << 20, .block_tokens = 16});
          infer::Conversation conversation(engine, *saved.tokenizer, chat_template, {},
                                           {.system = "Be brief", .options = {.max_tokens = 2}});
          std::string answer;
          const auto emit = [&](const std::string& text) {
            answer += text;
            return true;
          };
          EXPECT_EQ(conversation.answer("Hi", emit), FinishReason::AtLength);
          const std::string first = "s:Be brief|u:Hi|a:";
          EXPECT_EQ(answer, continued(saved, first, 2));
          const std::string second = first + answer + "|u:M|a:";
          answer.clear();
          conversation.answer("M", emit);
          EXPECT_EQ(answer, continued(saved, second, 2));
          EXPECT_EQ(conversation.messages().size(), 5U);
          // The second request finds the full blocks of the first one.
          EXPECT_GE(engine.counts().found_tokens, 16);
          answer.clear();
          conversation.begin("");
          conversation.answer("Hi", emit);
          EXPECT_EQ(answer, continued(saved, "u:Hi|a:", 2));
        },
        tensor);
}

TEST_F(Conversation, DeliversEventsOfOtherCallers) {
  with_model([&](const run::SavedModel& saved) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 20, .block_tokens = 16});
    std::vector<int64_t> tokens;
    const Request other{.prompt = saved.tokenizer->encode("Hello"), .options = {.max_tokens = 9}};
    engine.add(other, [&](const Event& event) { tokens.push_back(event.token); });
    infer::Conversation conversation(engine, *saved.tokenizer, chat_template, {}, {.options = {.max_tokens = 4}});
    conversation.answer("Hi", [](const std::string&) { return true; });
    const auto interrupts = [](const std::string&) -> bool { throw Error("test", "enough"); };
    EXPECT_THROW(conversation.answer("Ho", interrupts), Error);
    while (engine.has_work()) engine.step();
    EXPECT_EQ(tokens, generate(*saved.model, other));
  });
}

TEST_F(Conversation, EndsAtStopsAndWhenEmitReturnsFalse) {
  with_model([&](const run::SavedModel& saved) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 20, .block_tokens = 16});
    const auto ids =
        generate(*saved.model, {.prompt = saved.tokenizer->encode("u:Hi|a:"), .options = {.max_tokens = 5}});
    const auto forever = [](const std::string&) { return true; };
    infer::Conversation until(engine, *saved.tokenizer, chat_template, {ids[4]}, {});
    const size_t at = static_cast<size_t>(std::find(ids.begin(), ids.end(), ids[4]) - ids.begin());
    EXPECT_EQ(until.answer("Hi", forever), FinishReason::AtEnd);
    EXPECT_EQ(until.messages().back()["content"],
              text::valid_utf8(saved.tokenizer->decode({ids.begin(), ids.begin() + static_cast<int64_t>(at)})));

    infer::Conversation stopped(engine, *saved.tokenizer, chat_template, {}, {.options = {.max_tokens = 40}});
    std::string seen;
    EXPECT_EQ(stopped.answer("Hi", [&](const std::string& text) { return (seen += text).size() < 3; }),
              FinishReason::Cancelled);
    EXPECT_LT(seen.size(), 20U);
    EXPECT_EQ(stopped.messages().back()["content"], seen);
    EXPECT_FALSE(engine.has_work());
  });
}

TEST_F(Conversation, RefusesUnusedOptions) {
  with_model([&](const run::SavedModel& saved) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 20, .block_tokens = 16});
    EXPECT_EQ(test::thrown_message([&] {
                infer::Conversation(engine, *saved.tokenizer, chat_template, {}, {.options = {.logprobs = 2}});
              }),
              "[conversation] a conversation does not use logprobs: leave out --logprobs");
  });
}

TEST_F(Conversation, KeepsItsMessagesAfterAnError) {
  with_model([&](const run::SavedModel& saved) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 20, .block_tokens = 16});
    infer::Conversation conversation(engine, *saved.tokenizer, chat_template, {}, {.options = {.max_tokens = 2}});
    const auto forever = [](const std::string&) { return true; };
    conversation.answer("Hi", forever);
    const auto before = conversation.messages();
    EXPECT_THAT(test::thrown_message([&] { conversation.answer(std::string(5000, 'x'), forever); }),
                HasSubstr("must fit the model's positions"));
    EXPECT_EQ(conversation.messages(), before);
    EXPECT_THAT(test::thrown_message([&] {
                  conversation.answer("M", [](const std::string&) -> bool { throw Error("test", "no more paper"); });
                }),
                HasSubstr("no more paper"));
    EXPECT_EQ(conversation.messages(), before);
    while (engine.has_work()) engine.step();
    const text::ChatTemplate strict("{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}x");
    infer::Conversation refused(engine, *saved.tokenizer, strict, {}, {.options = {.max_tokens = 2}});
    refused.answer("Hi", forever);
    EXPECT_THAT(test::thrown_message([&] { refused.answer("again", forever); }), HasSubstr("one only"));
    EXPECT_EQ(refused.messages().size(), 2U);
  });
}

}  // namespace
}  // namespace colossal::infer::conversation_test
