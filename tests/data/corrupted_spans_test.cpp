#include "colossal/data/texts/corrupted_spans.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizers/byte.h"
#include "support/paths.h"
#include "support/thrown_message.h"

namespace colossal::data::corrupted_spans_test {
namespace {

using Ids = std::vector<int64_t>;
using ::testing::HasSubstr;

constexpr int64_t kEnd = 1, kStart = 0, kWords = 1000, kFirstSentinel = 2000;

Corpus counting(int64_t size) {
  std::vector<uint32_t> tokens(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) tokens[i] = static_cast<uint32_t>(2 + i % 900);
  return Corpus::of(std::move(tokens), kEnd, kWords);
}

Ids sentinels(int64_t count) {
  Ids ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(kFirstSentinel - i);  // in descending order, as in T5
  return ids;
}

Ids row_of(const at::Tensor& x) {
  const at::Tensor row = x[0].contiguous();
  return {row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()};
}

struct Row {
  Ids source, read, answer;
};

Row filled(const CorruptedSpans& samples, const PairSizes& sizes, int64_t index, uint64_t seed) {
  tensor::Batch batch = samples.make(1);
  samples.fill(index, seed, batch, 0);
  const Ids inputs = row_of(batch.at("ids"));
  return {{inputs.begin(), inputs.begin() + sizes.source},
          {inputs.begin() + sizes.source, inputs.end()},
          row_of(batch.at("labels"))};
}

/// Returns the text of a sample: the source, with each sentinel replaced by the tokens after it in the answer.
Ids restored(const Row& row, int64_t& spans) {
  std::map<int64_t, Ids> hidden;
  int64_t sentinel = -1;
  for (const int64_t id : row.answer) {
    if (id == kEnd) break;
    if (id > kWords)
      hidden[sentinel = id] = {};
    else
      hidden.at(sentinel).push_back(id);
  }
  spans = static_cast<int64_t>(hidden.size());
  Ids text;
  for (const int64_t id : row.source) {
    if (id == kEnd) return text;
    if (id > kWords)
      text.insert(text.end(), hidden.at(id).begin(), hidden.at(id).end());
    else
      text.push_back(id);
  }
  return {};
}

TEST(CorruptedSpans, SplitsTheTextIntoSourceAndAnswer) {
  const PairSizes sizes{.source = 64, .target = 24, .start_id = kStart};
  const SpanCounts counts = span_counts(sizes, {});
  const CorruptedSpans samples(counting(1000), sizes, {}, sentinels(counts.spans));
  EXPECT_EQ(samples.count(), 1000 / counts.text);
  std::map<size_t, int64_t> lengths;
  for (int64_t index = 0; index < samples.count(); ++index)
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const Row row = filled(samples, sizes, index, seed);
      int64_t spans = 0;
      const Ids text = restored(row, spans);
      ASSERT_EQ(static_cast<int64_t>(text.size()), counts.text);
      for (int64_t i = 0; i < counts.text; ++i) ASSERT_EQ(text[i], 2 + (index * counts.text + i) % 900);
      EXPECT_EQ(spans, counts.spans);
      EXPECT_LT(row.source.front(), kWords);  // the first span is visible
      EXPECT_EQ(row.answer.front(), kFirstSentinel);
      EXPECT_EQ(row.read.front(), kStart);
      for (size_t i = 0; i + 1 < row.answer.size() && row.answer[i] != kEnd; ++i)
        EXPECT_EQ(row.read[i + 1], row.answer[i]);
      size_t length = 0;
      for (const int64_t id : row.answer) {
        if (id > kWords || id == kEnd) {
          if (length > 0) ++lengths[length];
          length = 0;
        } else if (id != kIgnored) {
          ++length;
        }
      }
    }
  EXPECT_GT(lengths.size(), 4U);  // spans have many lengths
}

TEST(CorruptedSpans, HidesTheFractionOfThePaper) {
  // These are the sizes of T5's own preprocessing: 568 tokens of text give a source of 512 and an answer of 114.
  const SpanCounts counts = span_counts({.source = 512, .target = 114}, {});
  EXPECT_EQ(counts.text, 568);
  EXPECT_EQ(counts.hidden, 85);
  EXPECT_EQ(counts.spans, 28);
  EXPECT_EQ(counts.text - counts.hidden + counts.spans + 1, 512);
  EXPECT_EQ(counts.hidden + counts.spans + 1, 114);
  const SpanCounts few = span_counts({.source = 512, .target = 30}, {});
  EXPECT_LE(few.hidden + few.spans + 1, 30);
  const SpanCounts many = span_counts({.source = 100, .target = 400}, {.density = 0.5, .mean_span = 10});
  EXPECT_EQ(many.hidden, (many.text + 1) / 2);
}

TEST(CorruptedSpans, DependsOnTheSeedAlone) {
  const PairSizes sizes{.source = 40, .target = 20, .start_id = kStart};
  const CorruptedSpans samples(counting(400), sizes, {}, sentinels(span_counts(sizes, {}).spans));
  const Row first = filled(samples, sizes, 1, 7);
  EXPECT_EQ(filled(samples, sizes, 1, 7).source, first.source);
  EXPECT_NE(filled(samples, sizes, 1, 8).source, first.source);
  EXPECT_NE(samples.traits(), CorruptedSpans(counting(400), sizes, {.mean_span = 4}, sentinels(9)).traits());
}

TEST(CorruptedSpans, FindsTheSentinelsOfATokenizer) {
  struct Spelled : text::Tokenizer {
    std::vector<int64_t> encode(std::string_view) const override { return {}; }
    std::string piece(int64_t) const override { return ""; }
    std::string spelling(int64_t id) const override { return id < 3 ? concat("<extra_id_", 2 - id, ">") : "word"; }
    int64_t vocabulary_size() const override { return 9; }
    int64_t end_id() const override { return 8; }
  };
  EXPECT_EQ(sentinel_ids(Spelled(), 3), (Ids{2, 1, 0}));
  EXPECT_EQ(sentinel_ids(text::ByteTokenizer(), 2), (Ids{257, 258}));
  try {
    sentinel_ids(Spelled(), 4);
    FAIL() << "four sentinels of three";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("a sentinel for each of the 4 spans of a sample: got no <extra_id_3>"));
  }
}

TEST(CorruptedSpans, FindsTheSentinelsOfT5) {
  const std::string folder = test::source_dir() + "/../shared/data/tokenizers/";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  EXPECT_EQ(sentinel_ids(*text::make_tokenizer(folder + "hf/t5-small"), 3), (Ids{32099, 32098, 32097}));
  try {
    sentinel_ids(*text::make_tokenizer(folder + "hf/phi-2"), 1);
    FAIL() << "sentinels of a tokenizer that has none";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("got no <extra_id_0>; use a tokenizer.json that has them, or bytes"));
  }
}

TEST(CorruptedSpans, RefusesSizesThatHoldNoText) {
  EXPECT_THAT(test::thrown_message([] { span_counts({.source = 2, .target = 9}, {}); }),
              HasSubstr("at least 3 tokens"));
  EXPECT_THAT(test::thrown_message([] { span_counts({.source = 9, .target = -1}, {}); }),
              HasSubstr("model.source_tokens"));
  EXPECT_THAT(test::thrown_message([] { span_counts({.source = 9, .target = 9}, {.density = 1}); }),
              HasSubstr("between 0 and 1"));
  EXPECT_THAT(test::thrown_message([] { span_counts({.source = 9, .target = 9}, {.mean_span = 0}); }),
              HasSubstr("at least 1"));
  EXPECT_THAT(
      test::thrown_message([] { CorruptedSpans(counting(20), {.source = 64, .target = 24}, {}, sentinels(9)); }),
      HasSubstr("shorter than one sample"));
  EXPECT_THAT(
      test::thrown_message([] { CorruptedSpans(counting(200), {.source = 64, .target = 24}, {}, sentinels(1)); }),
      HasSubstr("one for each span: got 1"));
}

}  // namespace
}  // namespace colossal::data::corrupted_spans_test
