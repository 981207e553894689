#include "colossal/serve/choice_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/text/tokenizers/byte.h"
#include "support/temporary_folder.h"
#include "text/made_files.h"

namespace colossal::serve::choice_stream_test {
namespace {

using infer::Event;
using infer::FinishReason;
using infer::LogProbabilities;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const text::ByteTokenizer kBytes;

/// Returns the events of an answer, one per byte. Log-probabilities, if any, are minus the token's position.
std::vector<Event> events_of(const std::string& text, FinishReason reason = FinishReason::AtEnd, bool scored = false) {
  std::vector<Event> events;
  for (const int64_t id : kBytes.encode(text)) {
    Event event{.id = 0, .token = id};
    if (scored) event.log_probabilities = LogProbabilities{-static_cast<double>(events.size()), {{65, -0.5}}};
    events.push_back(event);
  }
  if (reason == FinishReason::AtLength && !events.empty())
    events.back().finish_reason = reason;
  else
    events.push_back({.id = 0, .token = reason == FinishReason::AtEnd ? kBytes.kEnd : -1, .finish_reason = reason});
  return events;
}

std::vector<ChoicePart> parts_of(ChoiceOptions options, const std::vector<Event>& events) {
  ChoiceStream stream(kBytes, std::move(options));
  std::vector<ChoicePart> parts;
  for (const Event& event : events)
    if (ChoicePart part = stream.hear(event); !part.is_empty()) parts.push_back(std::move(part));
  return parts;
}

ChoicePart whole(ChoiceOptions options, const std::vector<Event>& events) {
  ChoicePart all;
  for (ChoicePart& part : parts_of(std::move(options), events)) all.append(std::move(part));
  return all;
}

std::vector<std::string> texts_of(const std::vector<ChoicePart>& parts) {
  std::vector<std::string> texts;
  for (const ChoicePart& part : parts) texts.push_back(part.text);
  return texts;
}

std::vector<std::string> bytes_of_tokens(const ChoicePart& part) {
  std::vector<std::string> bytes;
  for (const ReportedToken& token : part.tokens) bytes.push_back(token.bytes);
  return bytes;
}

TEST(ChoiceStream, ReturnsAPartForEachTokenWhoseTextIsComplete) {
  EXPECT_THAT(texts_of(parts_of({}, events_of("aü!"))), ElementsAre("a", "ü", "!", ""));
  EXPECT_EQ(parts_of({}, events_of("a")).back().finish_reason, "stop");
}

TEST(ChoiceStream, ReportsTokensWithTheirText) {
  const auto parts = parts_of({}, events_of("aü!", FinishReason::AtLength, true));
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_THAT(bytes_of_tokens(parts[0]), ElementsAre("a"));
  EXPECT_THAT(bytes_of_tokens(parts[1]), ElementsAre("\xc3", "\xbc"));
  EXPECT_EQ(parts[1].tokens[0].offset, 1);
  EXPECT_EQ(parts[1].tokens[1].offset, 1);
  EXPECT_EQ(parts[2].tokens[0].offset, 2);  // in characters
  EXPECT_EQ(parts[2].tokens[0].logprob, -3);
  EXPECT_THAT(parts[2].tokens[0].best, ElementsAre(std::pair<std::string, double>("A", -0.5)));
  EXPECT_EQ(parts[2].finish_reason, "length");
}

TEST(ChoiceStream, ReportsNoTokensBehindAStopString) {
  const ChoicePart part = whole({.stop = {"STOP"}}, events_of("ab STOP more", FinishReason::AtLength, true));
  EXPECT_EQ(part.text, "ab ");
  EXPECT_THAT(bytes_of_tokens(part), ElementsAre("a", "b", " "));
  EXPECT_EQ(part.finish_reason, "stop");
}

TEST(ChoiceStream, StopsAtASpecialToken) {
  test::TemporaryFolder folder;
  const std::string file = folder.write("own.tiktoken", text::made::ranks());
  folder.write("encoding.json", R"({"pattern": "\\p{L}+|[^\\p{L}]+", "special_tokens": {"<turn>": 300}})");
  const auto tokenizer = text::make_tokenizer(file);
  ChoiceStream stream(*tokenizer, {.stop = {"<turn>b"}});
  ChoicePart all;
  for (const int64_t id : std::vector<int64_t>{'a', 300, 'a', 300, 'b', 'c'}) {
    Event event{.id = 0, .token = id};
    event.log_probabilities = LogProbabilities{-1, {}};
    all.append(stream.hear(event));
  }
  EXPECT_EQ(all.text, "aa");
  EXPECT_EQ(all.finish_reason, "stop");
  EXPECT_THAT(bytes_of_tokens(all), ElementsAre("a", "<turn>", "a"));
}

TEST(ChoiceStream, HoldsTokensThatMayBeginAStopString) {
  const auto parts = parts_of({.stop = {"xyz"}}, events_of("axyb", FinishReason::AtLength, true));
  EXPECT_THAT(texts_of(parts), ElementsAre("a", "xyb"));
  EXPECT_THAT(bytes_of_tokens(parts[1]), ElementsAre("x", "y", "b"));
}

TEST(ChoiceStream, ReportsTokensOfAnIncompleteEnd) {
  const ChoicePart part = whole({}, events_of("a\xc3", FinishReason::AtLength, true));
  EXPECT_EQ(part.text, "a\xef\xbf\xbd");
  EXPECT_THAT(bytes_of_tokens(part), ElementsAre("a", "\xc3"));
}

// Clients that score a text with `echo` drop the last token of the lists, which is the one generated token.
TEST(ChoiceStream, ReportsTheEndTokenWhereWanted) {
  std::vector<Event> events = events_of("ab", FinishReason::AtEnd, true);
  events.back().log_probabilities = LogProbabilities{-7, {{kBytes.kEnd, -7}}};
  EXPECT_THAT(bytes_of_tokens(whole({}, events)), ElementsAre("a", "b"));
  const ChoicePart part = whole({.reports_end = true}, events);
  EXPECT_EQ(part.text, "ab");
  ASSERT_THAT(bytes_of_tokens(part), ElementsAre("a", "b", kBytes.spelling(kBytes.kEnd)));
  EXPECT_EQ(part.tokens[2].logprob, -7);
  EXPECT_EQ(part.tokens[2].offset, 2);
  EXPECT_EQ(part.finish_reason, "stop");
  events.erase(events.begin(), events.end() - 1);
  EXPECT_EQ(whole({.reports_end = true}, events).tokens.size(), 1u);
}

TEST(ChoiceStream, StopsAtAStopStringAndIgnoresLaterEvents) {
  ChoiceStream stream(kBytes, {.stop = {"b"}});
  for (const Event& event : events_of("ab")) stream.hear(event);
  EXPECT_TRUE(stream.is_stopped());
  EXPECT_EQ(stream.tokens(), 2);
  EXPECT_TRUE(stream.hear({.id = 0, .token = 'x'}).is_empty());
  EXPECT_EQ(stream.tokens(), 2);
}

TEST(ChoiceStream, NamesTheReasonOfTheEnd) {
  EXPECT_EQ(whole({}, events_of("a", FinishReason::AtLength)).finish_reason, "length");
  EXPECT_EQ(whole({}, events_of("a", FinishReason::AtPositions)).finish_reason, "length");
  EXPECT_EQ(whole({}, events_of("a", FinishReason::Cancelled)).finish_reason, "cancelled");
  const ChoicePart failed =
      whole({}, {{.id = 0, .token = -1, .finish_reason = FinishReason::Failed, .error = "too many states"}});
  EXPECT_EQ(failed.finish_reason, "error");
  EXPECT_EQ(failed.error, "too many states");
}

TEST(ChoiceStream, RepeatsThePrompt) {
  std::vector<Event> events{{.id = 0, .token = 'c', .finish_reason = FinishReason::AtLength}};
  Event& first = events[0];
  first.log_probabilities = LogProbabilities{-3, {}};
  first.prompt_log_probabilities = {{-1, {{'x', -0.1}}}, {-2, {}}};
  const ChoicePart part = whole({.echo = Echo{"üb", {0xc3, 0xbc, 'b'}, true}}, events);
  EXPECT_EQ(part.text, "übc");
  ASSERT_EQ(part.tokens.size(), 4u);
  EXPECT_FALSE(part.tokens[0].logprob);
  EXPECT_EQ(part.tokens[1].logprob, -1);
  EXPECT_EQ(part.tokens[2].logprob, -2);
  EXPECT_EQ(part.tokens[3].logprob, -3);
  EXPECT_EQ(part.tokens[2].offset, 1);
  EXPECT_EQ(part.tokens[3].offset, 2);
}

TEST(ChoiceStream, RepeatsThePromptAlone) {
  const Event only{.id = 0, .token = -1, .finish_reason = FinishReason::AtLength};
  const ChoicePart part = whole({.echo = Echo{"a", {'a'}, true}}, {only});
  EXPECT_EQ(part.text, "a");
  EXPECT_EQ(part.tokens.size(), 1u);
  EXPECT_EQ(part.finish_reason, "length");
  EXPECT_THAT(whole({.echo = Echo{"a", {'a'}}}, {only}).tokens, IsEmpty());
}

/// Returns a prompt with one token of an answer. Each token of the prompt has the id `other` among the most probable.
ChoicePart repeated(const text::Tokenizer& tokenizer, const Echo& echo, int64_t answer, int64_t other) {
  Event event{.id = 0, .token = answer, .log_probabilities = LogProbabilities{-3, {}}};
  event.finish_reason = FinishReason::AtLength;
  event.prompt_log_probabilities.resize(echo.ids.size() - 1, {-1, {{other, -0.5}}});
  return ChoiceStream(tokenizer, {.echo = echo}).hear(event);
}

std::vector<int64_t> offsets_of(const ChoicePart& part) {
  std::vector<int64_t> offsets;
  for (const ReportedToken& token : part.tokens) offsets.push_back(token.offset);
  return offsets;
}

/// A vocabulary as LLaMA's: a space before each text, a begin token, and bytes.
std::unique_ptr<text::Tokenizer> sentence_piece() {
  using namespace text::made;
  std::string pieces = kControls + piece(kMark, -5) + piece(kMark + "a", -1) + piece("a", -1.5) + piece("b", -1.5) +
                       piece(kMark + "b", -1);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    pieces += piece(name, 0, 6);
  }
  const test::TemporaryFolder folder;
  return text::make_tokenizer(
      folder.write("a.model", pieces + trainer(1, number(35, 1)) + message(3, number(4, 0))));  // keeps white space
}

TEST(ChoiceStream, PlacesPromptTokensOfATokenizerThatAddsASpace) {
  const auto tokenizer = sentence_piece();
  const std::string text = "a\xc3\xa9 b";
  const std::vector<int64_t> ids = tokenizer->encode_prompt(text);
  ASSERT_THAT(ids, ElementsAre(1, 4, 8 + 0xc3, 8 + 0xa9, 7));
  const ChoicePart part = repeated(*tokenizer, {text, ids, true}, 4, 7);
  EXPECT_EQ(part.text, text + " a");
  EXPECT_THAT(bytes_of_tokens(part), ElementsAre("<s>", "a", "\xc3", "\xa9", " b", " a"));
  EXPECT_THAT(offsets_of(part), ElementsAre(0, 0, 1, 1, 2, 4));
  EXPECT_EQ(part.tokens[1].best[0].first, "b") << "in the place of a token without its space";
  EXPECT_EQ(part.tokens[2].best[0].first, " b");

  const ChoicePart spaces = repeated(*tokenizer, {"  a", tokenizer->encode_prompt("  a"), true}, 4, 7);
  std::string joined;
  for (size_t i = 1; i < spaces.tokens.size(); ++i) joined += spaces.tokens[i].bytes;
  EXPECT_EQ(joined, spaces.text);
  EXPECT_EQ(spaces.tokens.back().offset, 3);
}

TEST(ChoiceStream, PlacesPromptTokensOfBytePairs) {
  test::TemporaryFolder folder;
  const std::string file = folder.write("own.tiktoken", text::made::ranks());
  folder.write("encoding.json", R"({"pattern": "\\p{L}+|[^\\p{L}]+", "special_tokens": {"<end>": 300}})");
  const auto tokenizer = text::make_tokenizer(file);
  const std::string text = "aab<end>\xc3\xa9 ab";
  const std::vector<int64_t> ids = tokenizer->encode(text);
  ASSERT_THAT(ids, ElementsAre(258, 300, 0xc3, 0xa9, ' ', 257));
  const ChoicePart part = repeated(*tokenizer, {text, ids, true}, 'a', 'b');
  EXPECT_THAT(bytes_of_tokens(part), ElementsAre("aab", "<end>", "\xc3", "\xa9", " ", "ab", "a"));
  EXPECT_THAT(offsets_of(part), ElementsAre(0, 3, 8, 8, 9, 10, 12));
  const ChoicePart without = repeated(*tokenizer, {tokenizer->decode(ids), ids, true}, 'a', 'b');
  EXPECT_EQ(without.text, "aab\xc3\xa9 aba");
  EXPECT_THAT(offsets_of(without), ElementsAre(0, 3, 3, 3, 4, 5, 7));
}

TEST(ChoiceStream, ReadsCalls) {
  const ToolCallOptions tools{.functions = {"f"}};
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const auto parts = parts_of({.tools = tools}, events_of("Ok\n" + call));
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_THAT(texts_of(parts), ElementsAre("O", "k", "", ""));
  EXPECT_THAT(parts[2].calls, ElementsAre(ToolCall{"f", "{}"}));
  EXPECT_EQ(parts[3].finish_reason, "tool_calls");
  EXPECT_EQ(whole({.tools = tools}, events_of(call, FinishReason::AtPositions)).finish_reason, "length");
  EXPECT_EQ(whole({.tools = tools}, events_of("no call")).finish_reason, "stop");
}

TEST(ChoiceStream, ReportsTheTokensOfCalls) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const ChoicePart part =
      whole({.tools = ToolCallOptions{.functions = {"f"}}}, events_of(call, FinishReason::AtLength, true));
  EXPECT_EQ(part.tokens.size(), call.size());
}

}  // namespace
}  // namespace colossal::serve::choice_stream_test
