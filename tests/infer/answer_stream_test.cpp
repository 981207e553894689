#include "colossal/infer/prompts/answer_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "colossal/base/error.h"
#include "colossal/text/tokenizers/byte.h"

namespace colossal::infer::answer_stream_test {
namespace {

struct StreamedText {
  std::vector<std::string> pieces;
  std::string all, rest;
  bool is_stopped;
};

StreamedText streamed(const std::string& text, std::vector<std::string> stops) {
  const text::ByteTokenizer tokenizer;
  AnswerStream stream(tokenizer, std::move(stops));
  StreamedText result;
  for (const int64_t id : tokenizer.encode(text)) {
    result.pieces.push_back(stream.push(id));
    result.all += result.pieces.back();
  }
  result.rest = stream.finish();
  result.all += result.rest;
  result.is_stopped = stream.is_stopped();
  return result;
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

TEST(AnswerStream, RefusesInvalidStops) {
  EXPECT_THROW(streamed("a", {""}), Error);
  EXPECT_THROW(streamed("a", {"\xff"}), Error);
}

}  // namespace
}  // namespace colossal::infer::answer_stream_test
