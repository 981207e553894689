#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <fstream>

#include "colossal/base/json.h"
#include "colossal/data/texts/labelled.h"
#include "colossal/text/tokenizers/byte.h"
#include "support/cifar_folder.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::labelled_texts_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string file(const std::string& name, const std::string& content) {
  const std::string path = testing::TempDir() + "/labelled-" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(LabelledTexts, ReadsTabsAndJson) {
  const LabelledTexts tabs = read_labelled_texts(file("a.tsv", "2\tone\ttwo\r\n\n0\t\n"));
  EXPECT_THAT(tabs.texts, ElementsAre("one\ttwo", ""));
  EXPECT_THAT(tabs.labels, ElementsAre(2, 0));
  EXPECT_EQ(tabs.classes, 3);
  const LabelledTexts json = read_labelled_texts(
      file("a.jsonl", "{\"text\": \"x\\ny\", \"label\": \"spam\"}\n{\"label\": \"ham\", \"text\": \"z\"}\n"));
  EXPECT_THAT(json.texts, ElementsAre("x\ny", "z"));
  EXPECT_THAT(json.labels, ElementsAre(1, 0));  // class 0 is ham, class 1 is spam
  EXPECT_EQ(json.classes, 2);
  EXPECT_THAT(json.names, ElementsAre("ham", "spam"));
  EXPECT_THAT(tabs.names, ElementsAre());
  EXPECT_NE(tabs.fingerprint, json.fingerprint);
}

TEST(LabelledTexts, NumbersClassesByTheNamesOfAModel) {
  LabelledTexts texts = read_labelled_texts(file("l.tsv", "spam\ta\nham\tb\nspam\tc\n"));
  texts.number_as({"spam", "other", "ham"});
  EXPECT_THAT(texts.labels, ElementsAre(0, 2, 0));
  EXPECT_EQ(texts.classes, 3);
  EXPECT_THAT(texts.split(0.5).second.names, ElementsAre("spam", "other", "ham"));
  EXPECT_THAT(test::thrown_message([&] { texts.number_as({"spam", "ham"}); }),
              HasSubstr("the classes of the texts must be those of the model: got other; set model.class_names"));
  LabelledTexts numbers = read_labelled_texts(file("m.tsv", "1\ta\n0\tb\n"));
  numbers.number_as({"spam", "ham"});
  EXPECT_THAT(numbers.labels, ElementsAre(1, 0));
}

TEST(LabelledTexts, KeepsNumbersOfUnnamedClasses) {
  const std::string content = "LABEL_10\ta\nLABEL_2\tb\nLABEL_0\tc\n";
  LabelledTexts texts = read_labelled_texts(file("n.tsv", content));
  EXPECT_THAT(texts.labels, ElementsAre(10, 2, 0));
  EXPECT_EQ(texts.classes, 11);
  EXPECT_THAT(texts.names, ElementsAre());
  EXPECT_THAT(test::thrown_message([&] { texts.number_as({"spam", "ham"}); }), HasSubstr("got LABEL_10; set"));
  texts = read_labelled_texts(file("n.tsv", content));
  texts.number_as({"LABEL_2", "LABEL_10", "LABEL_0"});
  EXPECT_THAT(texts.labels, ElementsAre(1, 0, 2));
  EXPECT_THAT(read_labelled_texts(file("o.tsv", "LABEL_2\ta\nother\tb\n")).labels, ElementsAre(0, 1));
  EXPECT_THAT(read_labelled_texts(file("p.tsv", "LABEL_02\ta\nLABEL_1\tb\n")).labels, ElementsAre(0, 1));
}

TEST(LabelledTexts, NamesTheWrongLine) {
  const auto refusal = [](const std::string& name, const std::string& content) {
    return test::thrown_message([&] { read_labelled_texts(file(name, content)); });
  };
  EXPECT_THAT(refusal("b.tsv", "1\tgood\nno tab\n"), HasSubstr("b.tsv:2: a line must be `label<tab>text`: got no tab"));
  EXPECT_THAT(refusal("b.jsonl", "{\"text\": \"x\"}\n"), HasSubstr("b.jsonl:1: no column label"));
  EXPECT_THAT(refusal("c.jsonl", "{\"text\": \"x\", \"label\": [1]}\n"), HasSubstr("label must be a number or a name"));
  EXPECT_THAT(refusal("q.tsv", "tea\ta\ncaf\xe9\tb\n"), HasSubstr("q.tsv:2: a label must be UTF-8: got caf"));
  EXPECT_THAT(refusal("q.tsv", "tea\ta\ncaf\xc3\tb\n"), HasSubstr("q.tsv:2: a label must be UTF-8"));
  EXPECT_THAT(refusal("c.tsv", "\n\n"), HasSubstr("holds no texts"));
  EXPECT_THAT(test::thrown_message([] { read_labelled_texts("/absent.tsv"); }), HasSubstr("/absent.tsv"));
}

TEST(LabelledTexts, NeverReadsNumbersAsNames) {
  const auto refusal = [](const std::string& name, const std::string& content) {
    return test::thrown_message([&] { read_labelled_texts(file(name, content)); });
  };
  EXPECT_THAT(refusal("e.tsv", "label\ttext\n1\tgood\n0\tbad\n"),
              AllOf(HasSubstr("e.tsv:1: labels must be all numbers or all names: got label, and "),
                    HasSubstr("e.tsv:2 has 1; remove the line if it is a header")));
  EXPECT_THAT(refusal("f.tsv", "0\ta\n11\tb\n\nx\tc\n2\td\n"), HasSubstr("f.tsv:4: labels must be all numbers"));
  EXPECT_THAT(refusal("g.tsv", "1\ta\n-1\tb\n0\tc\n"),
              HasSubstr("g.tsv:2: a label that is a number must be in [0, 16777216): got -1; remove the texts"));
  EXPECT_THAT(refusal("h.tsv", "1\ta\n16777216\tb\n"), HasSubstr("h.tsv:2: a label that is a number"));
  EXPECT_THAT(refusal("i.tsv", "1\ta\n99999999999999999999\tb\n"), HasSubstr("i.tsv:2: a label that is a number"));
  EXPECT_THAT(refusal("j.jsonl", "{\"text\": \"a\", \"label\": \"x\"}\n{\"text\": \"b\", \"label\": 3}\n"),
              HasSubstr("j.jsonl:1: labels must be all numbers or all names: got x"));
  EXPECT_THAT(read_labelled_texts(file("k.tsv",
                                       "\xef\xbb\xbf"
                                       "1\ta\n10\tb\n2\tc\n"))
                  .labels,
              ElementsAre(1, 10, 2));
}

TEST(LabelledTexts, SplitsEachTextIntoOnePart) {
  std::string content;
  for (int i = 0; i < 200; ++i) content += std::to_string(i % 3) + "\t" + std::to_string(i) + "\n";
  const LabelledTexts all = read_labelled_texts(file("d.tsv", content));
  const auto [training, held_out] = all.split(0.25);
  std::vector<std::string> both = training.texts;
  both.insert(both.end(), held_out.texts.begin(), held_out.texts.end());
  EXPECT_THAT(both, testing::UnorderedElementsAreArray(all.texts));
  EXPECT_GT(held_out.texts.size(), 20u);
  EXPECT_LT(held_out.texts.size(), 80u);
  for (size_t i = 0; i < held_out.texts.size(); ++i) EXPECT_EQ(held_out.labels[i], std::stoll(held_out.texts[i]) % 3);
  EXPECT_TRUE(all.split(0).second.texts.empty());
}

TEST(LabelledSamples, EnclosesTextsInBeginAndEndTokens) {
  LabelledTexts texts{.texts = {"ab", "abcdefgh"}, .labels = {3, 1}, .classes = 4};
  const LabelledSamples samples(texts, text::ByteTokenizer(), 6);
  tensor::Batch batch = samples.make(2);
  samples.fill(0, 0, batch, 0);
  samples.fill(1, 0, batch, 1);
  const auto same = [](const at::Tensor& got, at::ArrayRef<int64_t> want) {
    EXPECT_TRUE(at::equal(got.flatten(), at::tensor(want, at::kLong))) << got;
  };
  same(batch.at("ids"), {256, 'a', 'b', 256, 256, 256, 256, 'a', 'b', 'c', 'd', 256});
  same(batch.at("positions"), {0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5});
  same(batch.at("documents"), {0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0});
  same(batch.at("labels"), {3, 1});
}

/// A byte tokenizer that encodes the bytes of a text in reverse order.
class Backwards : public text::Tokenizer {
 public:
  std::vector<int64_t> encode(std::string_view text) const override {
    return bytes_.encode(std::string(text.rbegin(), text.rend()));
  }
  std::string piece(int64_t id) const override { return bytes_.piece(id); }
  int64_t vocabulary_size() const override { return bytes_.vocabulary_size(); }
  int64_t end_id() const override { return bytes_.end_id(); }

 private:
  text::ByteTokenizer bytes_;
};

TEST(LabelledSamples, ChangesTraitsWithTokenizerAndNames) {
  LabelledTexts texts{.texts = {"ab", "cd"}, .labels = {0, 1}, .classes = 2};
  const nlohmann::json traits = LabelledSamples(texts, text::ByteTokenizer(), 6).traits();
  EXPECT_EQ(LabelledSamples(texts, text::ByteTokenizer(), 6).traits(), traits);
  EXPECT_NE(LabelledSamples(texts, Backwards(), 6).traits(), traits);
  texts.names = {"a", "b"};
  EXPECT_NE(LabelledSamples(texts, text::ByteTokenizer(), 6).traits(), traits);
}

TEST(LabelledSamples, RefusesEmptySetsAndShortSequences) {
  const LabelledTexts one{.texts = {"a"}, .labels = {0}, .classes = 1};
  EXPECT_THAT(test::thrown_message([&] { LabelledSamples(one, text::ByteTokenizer(), 2); }), HasSubstr("got 2"));
  EXPECT_THAT(test::thrown_message([&] { LabelledSamples({}, text::ByteTokenizer(), 8); }),
              HasSubstr("labelled texts"));
}

TEST(LabelledTexts, KeepsTextsBeforeTheDamage) {
  const test::TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += std::to_string(i % 2) + "\ttext " + std::to_string(i * 7919 % 1000) + "\n";
  test::write_gzip(folder / "a.tsv.gz", lines);
  const std::string packed = test::read_all(folder / "a.tsv.gz");
  const std::string cut = folder.write("cut.tsv.gz", packed.substr(0, packed.size() / 2));
  EXPECT_THAT(test::thrown_message([&] { read_labelled_texts(cut); }),
              testing::ContainsRegex("cut.tsv.gz:[0-9]+: the rest of the file cannot be read"));
  const LabelledTexts texts = read_labelled_texts(cut, {.on_error = OnError::Skip});
  EXPECT_GT(texts.texts.size(), 500u);
  EXPECT_LT(texts.texts.size(), 1500u);
  EXPECT_THAT(texts.skipped_records, testing::ElementsAre(testing::HasSubstr("the rest of the file cannot be read")));
}

}  // namespace
}  // namespace colossal::data::labelled_texts_test
