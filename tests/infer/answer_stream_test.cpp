#include "colossal/infer/prompts/answer_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "colossal/base/error.h"
#include "colossal/text/tokenizers/byte.h"
#include "support/temporary_folder.h"
#include "text/made_files.h"

namespace colossal::infer::answer_stream_test {
namespace {

struct StreamedText {
  std::vector<std::string> pieces;
  std::string all, rest;
  bool is_stopped;
};

StreamedText streamed(const std::vector<int64_t>& ids, std::vector<std::string> stops,
                      const text::Tokenizer& tokenizer) {
  AnswerStream stream(tokenizer, std::move(stops));
  StreamedText result;
  for (const int64_t id : ids) {
    result.pieces.push_back(stream.push(id));
    result.all += result.pieces.back();
  }
  result.rest = stream.finish();
  result.all += result.rest;
  result.is_stopped = stream.is_stopped();
  return result;
}

StreamedText streamed(const std::string& text, std::vector<std::string> stops,
                      const text::Tokenizer& tokenizer = text::ByteTokenizer()) {
  return streamed(tokenizer.encode(text), std::move(stops), tokenizer);
}

TEST(AnswerStream, ReturnsAllTextWithoutStops) {
  const StreamedText plain = streamed("Grüße", {});
  EXPECT_EQ(plain.all, "Grüße");
  EXPECT_FALSE(plain.is_stopped);
  EXPECT_EQ(plain.pieces[0], "G");
}

TEST(AnswerStream, HoldsBackPossibleStops) {
  const StreamedText held = streamed("ab<x<en", {"<end>"});
  EXPECT_EQ(held.pieces, (std::vector<std::string>{"a", "b", "", "<x", "", "", ""}));
  EXPECT_EQ(held.rest, "<en");
  EXPECT_FALSE(held.is_stopped);
}

TEST(AnswerStream, EndsBeforeAStopString) {
  const StreamedText stopped = streamed("ab<<end>cd", {"never", "<end>"});
  EXPECT_EQ(stopped.all, "ab<");
  EXPECT_TRUE(stopped.is_stopped);
  EXPECT_EQ(streamed("stop", {"stop"}).all, "");
  // The stop string that is complete first counts, even inside another one that has started.
  EXPECT_EQ(streamed("xabcd", {"abcde", "bc"}).all, "xa");
  EXPECT_EQ(streamed("ü!", {"ü"}).all, "");
}

TEST(AnswerStream, ReturnsTextBeforeTheFirstStop) {
  std::mt19937 draw(5);
  const auto word = [&](unsigned most) {
    std::string letters;
    for (unsigned i = 1 + draw() % most; i > 0; --i) letters += static_cast<char>('a' + draw() % 2);
    return letters;
  };
  for (int i = 0; i < 3000; ++i) {
    const std::string text = word(14);
    const std::vector<std::string> stops{word(5), word(5)};
    std::string want = text;
    bool is_stopped = false;
    for (size_t length = 1; length <= text.size() && !is_stopped; ++length) {
      const std::string so_far = text.substr(0, length);
      const size_t found = std::min(so_far.find(stops[0]), so_far.find(stops[1]));
      is_stopped = found != std::string::npos;
      if (is_stopped) want = so_far.substr(0, found);
    }
    const StreamedText got = streamed(text, stops);
    ASSERT_EQ(got.all, want) << text << " " << stops[0] << " " << stops[1];
    ASSERT_EQ(got.is_stopped, is_stopped);
  }
}

/// A tokenizer of bytes with the special tokens <turn> and <pad>.
std::unique_ptr<text::Tokenizer> with_special_tokens() {
  test::TemporaryFolder folder;
  const std::string file = folder.write("own.tiktoken", text::made::ranks());
  folder.write("encoding.json", R"({"pattern": "\\p{L}|[^\\p{L}]", "special_tokens": {"<turn>": 300, "<pad>": 301}})");
  return text::make_tokenizer(file);
}

TEST(AnswerStream, FindsSpecialTokensInStops) {
  const auto tokenizer = with_special_tokens();
  for (const std::string stop : {"<turn>", "<turn>user", "e.<turn>u", "<turn>user<pad>"}) {
    const StreamedText got = streamed("One.<turn>user<pad>Two", {"never", stop}, *tokenizer);
    EXPECT_EQ(got.all, stop.starts_with("e") ? "On" : "One.") << stop;
    EXPECT_TRUE(got.is_stopped) << stop;
  }
}

TEST(AnswerStream, LeavesOutSpecialTokensThatDoNotStop) {
  const auto tokenizer = with_special_tokens();
  const std::vector<int64_t> ids{'a', 300, 'u', 's', 300, 0xc3, 300, 0xbc, '!', 300, 'u', 's'};
  const StreamedText begun = streamed(ids, {"<turn>user"}, *tokenizer);
  EXPECT_EQ(begun.all, "aus\xc3\xbc!us") << "a special token that may begin the stop string";
  EXPECT_FALSE(begun.is_stopped);
  const StreamedText other = streamed("One<pad>.user", {"<turn>", "e.u"}, *tokenizer);
  EXPECT_EQ(other.all, "On") << "a special token that no stop string has does not part the text";
  EXPECT_EQ(streamed("a<turn>b", {}, *tokenizer).all, "ab");
  // The text of a piece of a spelling is no special token.
  EXPECT_EQ(streamed("a<turn>b", {"turn>", "<turn"}, *tokenizer).all, "ab");
}

TEST(AnswerStream, RefusesInvalidStops) {
  EXPECT_THROW(streamed("a", {""}), Error);
  EXPECT_THROW(streamed("a", {"\xff"}), Error);
}

}  // namespace
}  // namespace colossal::infer::answer_stream_test
