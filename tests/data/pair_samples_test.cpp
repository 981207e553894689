#include "colossal/data/texts/pair_samples.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <fstream>

#include "colossal/base/json.h"
#include "colossal/text/tokenizers/byte.h"
#include "support/thrown_message.h"

namespace colossal::data::pair_samples_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string file(const std::string& name, const std::string& content) {
  const std::string path = testing::TempDir() + "/pairs-" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::vector<int64_t> numbers(const at::Tensor& t) { return {t.data_ptr<int64_t>(), t.data_ptr<int64_t>() + t.numel()}; }

TEST(TextPairs, ReadsTabsAndJson) {
  const TextPairs tabs = read_text_pairs(file("a.tsv", "one\tuno\r\n\ntwo\tdos\ttres\n"));
  EXPECT_THAT(tabs.sources, ElementsAre("one", "two"));
  EXPECT_THAT(tabs.targets, ElementsAre("uno", "dos\ttres"));
  const TextPairs json = read_text_pairs(file("a.jsonl", "{\"task\": \"t:\", \"en\": \"one\", \"es\": \"uno\"}\n"),
                                         {.text_columns = {"task", "en"}, .target_column = "es"});
  EXPECT_THAT(json.sources, ElementsAre("t:\n\none"));
  EXPECT_THAT(json.targets, ElementsAre("uno"));
  EXPECT_NE(tabs.fingerprint, json.fingerprint);
}

TEST(TextPairs, RefusesOrSkipsMalformedLines) {
  const auto refusal = [](const std::string& name, const std::string& content) {
    return test::thrown_message([&] { read_text_pairs(file(name, content)); });
  };
  EXPECT_THAT(refusal("b.tsv", "a\tb\nno tab\n"), HasSubstr("b.tsv:2: a line must be `text<tab>answer`"));
  EXPECT_THAT(refusal("b.jsonl", "{\"text\": \"a\"}\n"), HasSubstr("target"));
  EXPECT_THAT(refusal("c.tsv", "\n"), HasSubstr("holds no pairs of texts"));
  EXPECT_THAT(read_text_pairs(file("b.tsv", "a\tb\nno tab\n"), {.on_error = OnError::Skip}).targets, ElementsAre("b"));
}

TEST(TextPairs, SplitsByNumber) {
  TextPairs all;
  for (int i = 0; i < 100; ++i) all.sources.push_back(std::to_string(i)), all.targets.push_back(std::to_string(-i));
  const auto [training, held_out] = all.split(0.25);
  EXPECT_EQ(training.sources.size() + held_out.sources.size(), 100U);
  EXPECT_GT(held_out.sources.size(), 10U);
  EXPECT_LT(held_out.sources.size(), 45U);
  for (size_t i = 0; i < held_out.sources.size(); ++i)
    EXPECT_EQ(std::stoi(held_out.sources[i]), -std::stoi(held_out.targets[i]));
}

TEST(PairSamples, ShiftsTheAnswerAndMarksPadding) {
  const text::ByteTokenizer tokenizer;
  const int64_t end = tokenizer.end_id();
  TextPairs texts{{"ab", "abcdef"}, {"x", "uvwxyz"}, "f"};
  const PairSamples samples(texts, tokenizer, {.source = 4, .target = 3, .start_id = 7});
  tensor::Batch batch = samples.make(2);
  samples.fill(0, 0, batch, 0);
  samples.fill(1, 0, batch, 1);
  EXPECT_THAT(numbers(batch.at("ids")[0]), ElementsAre('a', 'b', end, 7, 7, 'x', 7));
  EXPECT_THAT(numbers(batch.at("labels")[0]), ElementsAre('x', end, kIgnored));
  EXPECT_THAT(numbers(batch.at("documents")[0]), ElementsAre(0, 0, 0, 1, 0, 0, 0));
  EXPECT_THAT(numbers(batch.at("ids")[1]), ElementsAre('a', 'b', 'c', end, 7, 'u', 'v'));
  EXPECT_THAT(numbers(batch.at("labels")[1]), ElementsAre('u', 'v', end));
  EXPECT_THAT(numbers(batch.at("documents")[1]), ElementsAre(0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(numbers(batch.at("positions")[1]), ElementsAre(0, 1, 2, 3, 0, 1, 2));
  texts.targets[0] = "y";
  EXPECT_NE(samples.traits()["tokens"],
            PairSamples(texts, tokenizer, {.source = 4, .target = 3, .start_id = 7}).traits()["tokens"]);
  EXPECT_THAT(test::thrown_message([&] { PairSamples(texts, tokenizer, {4, 1, 0}); }), HasSubstr("got 4 and 1 tokens"));
  EXPECT_THAT(test::thrown_message([&] { PairSamples({}, tokenizer, {4, 4, 0}); }), HasSubstr("must be pairs"));
}

}  // namespace
}  // namespace colossal::data::pair_samples_test
