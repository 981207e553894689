// The data that a run reads, and combinations of data and model that are refused.
#include "colossal/run/data.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/data/texts/corrupted_spans.h"
#include "colossal/data/texts/text_archive.h"
#include "colossal/models/registry.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::data_test {
namespace {

using testing::HasSubstr;

class BertData : public testing::Test {
 protected:
  void SetUp() override {
    std::string texts;
    for (int i = 0; i < 60; ++i) texts += std::to_string(i % 3) + "\ttext " + std::to_string(i) + "\n";
    folder.write("texts.tsv", texts);
  }
  Config config(const std::string& objective) {
    Config c;
    c.model = {.name = "bert-tiny",
               .hidden = 16,
               .layers = 1,
               .own = models::own_keys({"objective=" + objective, "classes=3"})};
    c.data.path = folder / "texts.tsv";
    c.data.sequence = 16;
    c.data.held_out = 0.3;
    c.training.batch_size = 8;
    return c;
  }
  std::string refusal(const Config& c) {
    return test::thrown_message([&] { open_data(c, models::built_in(), folder.path(), 0); });
  }
  test::TemporaryFolder folder;
};

TEST_F(BertData, ReadsMaskedTokensAndClassesFromOneFile) {
  const RunData masked = open_data(config("masked-token"), models::built_in(), "", 0);
  EXPECT_EQ(masked.shape.vocabulary, 258);  // 257 of bytes and the mask token
  EXPECT_EQ(masked.training->next().at("labels").sizes(), (std::vector<int64_t>{8, 16}));
  const RunData classes = open_data(config("class"), models::built_in(), "", 0);
  EXPECT_EQ(classes.training->next().at("labels").sizes(), (std::vector<int64_t>{8, 1}));
  EXPECT_EQ(classes.training->samples() + classes.held_out->samples(), 60);
}

TEST_F(BertData, KeepsClassNamesOfTexts) {
  std::string texts;
  for (int i = 0; i < 60; ++i) texts += std::string(i % 2 ? "spam" : "ham") + "\ttext " + std::to_string(i) + "\n";
  folder.write("texts.tsv", texts);
  Config c = config("class");
  c.model.own = models::own_keys({"objective=class", "classes=2"});
  const auto names = [](const models::ModelShape& shape) { return shape.task().class_names; };
  const RunData learnt = open_data(c, models::built_in(), "", 0);
  EXPECT_THAT(names(learnt.shape), testing::ElementsAre("ham", "spam"));
  const auto config_of_folder = learnt.shape.architecture->hugging_face.to_json(learnt.shape);
  EXPECT_EQ(config_of_folder["id2label"], (nlohmann::json{{"0", "ham"}, {"1", "spam"}}));

  // The saved config of a run is read again, and a model's own order of classes takes precedence.
  c.model = learnt.model;
  Config again;
  ConfigDocument::parse(to_toml(c), "config.toml").read(again);
  EXPECT_EQ(open_data(again, models::built_in(), "", 0).shape, learnt.shape);
  EXPECT_NO_THROW(open_data(again, models::built_in(), "", 0).training->restore(learnt.training->state()));
  c.model.own = models::own_keys({"objective=class", "classes=2", R"(class_names=["spam","ham"])"});
  const RunData given = open_data(c, models::built_in(), "", 0);
  EXPECT_THAT(names(given.shape), testing::ElementsAre("spam", "ham"));
  const auto sum = [](const RunData& run) { return run.training->next().at("labels").sum().item<int64_t>(); };
  EXPECT_EQ(sum(learnt) + sum(given), 8);
  EXPECT_NE(test::thrown_message([&] { given.training->restore(learnt.training->state()); }), "");

  c.model.own = models::own_keys({"objective=class", "classes=3"});
  const RunData wide = open_data(c, models::built_in(), "", 0);
  EXPECT_THAT(names(wide.shape), testing::ElementsAre("ham", "spam", "LABEL_2"));
  c.model = wide.model;
  EXPECT_NO_THROW(open_data(c, models::built_in(), "", 0).training->restore(wide.training->state()));
  c.model.own = models::own_keys({"objective=class", "classes=3", R"(class_names=["spam","ham"])"});
  EXPECT_THAT(refusal(c), HasSubstr("class_names must be one for each of the classes: got 2 for 3 classes"));
}

TEST_F(BertData, RoundTripsManyClassNames) {
  std::string texts;
  for (int i = 0; i < 150; ++i) texts += "cs.\"A\\" + std::to_string(i) + "\ttext\n";
  folder.write("texts.tsv", texts);
  Config c = config("class");
  c.model.own = models::own_keys({"objective=class", "classes=150"});
  const RunData learnt = open_data(c, models::built_in(), "", 0);
  c.model = learnt.model;
  Config again;  // this is how `colossal export` reads it
  ConfigDocument::parse(to_toml(c), "config.toml").read(again);
  const models::ModelShape shape = resolve_model(again, models::built_in()).shape;
  EXPECT_EQ(shape, learnt.shape);
  EXPECT_EQ(models::built_in().shape_of(nlohmann::json::parse(shape.architecture->hugging_face.to_json(shape).dump())),
            shape);
}

TEST_F(BertData, RefusesDuplicateClassNames) {
  folder.write("texts.tsv", "LABEL_2\ta\nother\tb\n");
  Config c = config("class");
  EXPECT_THAT(refusal(c),
              HasSubstr("class names must differ: an unused class would be named LABEL_2 like a class of "));
  c.model.own = models::own_keys({"objective=class", "classes=3", R"(class_names=["a","b","a"])"});
  EXPECT_THAT(refusal(c), HasSubstr("class_names must differ: got a twice"));
}

TEST_F(BertData, CountsHeldOutTextsOnce) {
  const RunData data = open_data(config("class"), models::built_in(), "", 0);
  int64_t counted = 0;
  for (int64_t i = 0; i < data.held_out->samples(); ++i)
    counted += data.held_out->next().at("labels").ne(data::kIgnored).sum().item<int64_t>();
  EXPECT_EQ(counted, data.held_out->samples());
  EXPECT_NE(counted % 8, 0);  // otherwise no batch would have continued with the next epoch
}

TEST_F(BertData, RefusesMismatchedDataAndModel) {
  Config c = config("class");
  c.data.path = "builtin";
  EXPECT_THAT(refusal(c), HasSubstr("a model that classifies text reads labelled texts"));
  c = config("class");
  c.data.documents = "joined";
  EXPECT_THAT(refusal(c), HasSubstr("documents must be separate for labelled texts"));
  c = config("class");
  c.model.own = models::own_keys({"objective=class", "classes=2"});
  EXPECT_THAT(refusal(c), HasSubstr("classes must hold those of the texts: got 2, "));
  c = config("masked-token");
  c.model.vocabulary = 257;
  EXPECT_THAT(refusal(c), HasSubstr("got 257, tokenizer 257 and the mask token; set model.vocabulary"));
  for (const std::string objective : {"class", "masked-token"}) {
    c = config(objective);
    c.data.own = data_keys({"noise_density=0.15"});
    EXPECT_THAT(refusal(c), HasSubstr(concat("`data.noise_density` belongs to the objective target, and this run has ",
                                             objective, ": got 0.15; leave it out")));
  }
}

/// Returns a config of a T5 that restores hidden spans of the text in `path`.
Config of_hidden_spans(const std::string& path) {
  Config c;
  c.model = {.name = "t5-tiny", .hidden = 16, .layers = 2, .own = models::own_keys({"source_tokens=48"})};
  c.data.path = path;
  c.data.sequence = 64;
  c.data.held_out = 0.3;
  c.data.documents = "joined";
  c.data.own = data_keys({"noise_density=0.15"});
  c.training.batch_size = 4;
  c.training.evaluate_batches = 1;
  return c;
}

TEST(T5Data, ReadsPlainTextWithHiddenSpans) {
  const test::TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "word " + std::to_string(i) + " ";
  const Config c = of_hidden_spans(folder.write("text.txt", text));
  const auto refusal = [&](const Config& config) {
    return test::thrown_message([&] { open_data(config, models::built_in(), folder.path(), 0); });
  };
  const RunData run = open_data(c, models::built_in(), folder.path(), 0);
  const int64_t spans = data::span_counts({.source = 48, .target = 16}, {}).spans;
  EXPECT_EQ(run.shape.vocabulary, 257 + spans);  // bytes have no sentinels, so these are added
  const tensor::Batch batch = run.training->next();
  EXPECT_EQ(batch.at("ids").sizes(), (std::vector<int64_t>{4, 64}));
  EXPECT_EQ(batch.at("labels").sizes(), (std::vector<int64_t>{4, 16}));
  EXPECT_TRUE(
      batch.at("labels").select(1, 0).eq(257).all().item<bool>());  // each target begins with the first sentinel
  EXPECT_EQ(run.held_out->next().at("labels").sizes(), (std::vector<int64_t>{4, 16}));

  Config other = c;
  other.data.documents = "separate";
  EXPECT_THAT(refusal(other), HasSubstr("documents must be joined with noise_density"));
  other = c;
  other.data.path = folder.write("text.jsonl", "{\"text\": \"a\"}\n");
  EXPECT_THAT(refusal(other), HasSubstr("noise_density needs plain text"));
  other = c;
  other.model.vocabulary = 258;
  EXPECT_THAT(refusal(other), HasSubstr("got 258, tokenizer 257 and the sentinels; set model.vocabulary"));
  other = c;
  other.model = {.name = "gpt2-tiny", .hidden = 16, .layers = 1};
  EXPECT_THAT(refusal(other),
              HasSubstr("`data.noise_density` belongs to the objective target, and this run has next-token"));
}

TEST(T5Data, RefusesHeldOutPartShorterThanSample) {
  const test::TemporaryFolder folder;
  const int64_t sample = data::span_counts({.source = 48, .target = 16}, {}).text;
  // 10 samples, including the end token
  Config c = of_hidden_spans(folder.write("text.txt", std::string(10 * sample - 1, 'x')));
  const auto opened = [&] { return open_data(c, models::built_in(), folder.path(), 0); };
  c.data.held_out = 0.05;
  const std::string rule = "the held-out part must hold a sample: ",
                    remedy = "raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0";
  EXPECT_THAT(test::thrown_message(opened),
              HasSubstr(concat(rule, "got ", sample / 2, " tokens, a sample has ", sample,
                               ", because the text is too short for data.held_out = 0.05; add text, ", remedy)));
  c.data.held_out = 0.15;
  EXPECT_EQ(opened().held_out->samples(), 1);
  c.data.held_out = 0.05;
  c.training.evaluate_batches = 0;
  EXPECT_EQ(opened().held_out, nullptr);
}

TEST_F(BertData, NamesTheReasonWhyRecordsHoldNoSequence) {
  Config c = config("masked-token");
  c.data.path = folder.write("few.jsonl", "{\"text\": \"a few words\"}\n");
  EXPECT_THAT(refusal(c), HasSubstr("the held-out part must hold a sequence: got 12 tokens, sequence 16, because the "
                                    "data are too short for data.held_out = 0.3; add records, raise data.held_out"));
  c.data.path = folder.write("chat.jsonl", "\n{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n");
  const std::string limit = "got a conversation in column messages; train on conversations with alignment.method";
  for (const char* column : {"text", "messages"}) {
    c.data.text_columns = {column};
    EXPECT_THAT(refusal(c), HasSubstr(concat("chat.jsonl:2: training needs a text in column ", column, ": ", limit)));
  }
}

TEST_F(BertData, StreamsNamedColumnsOfJsonLines) {
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += R"({"body": "text number )" + std::to_string(i) + R"(", "kind": ")" + (i % 2 ? "ham" : "spam") + "\"}\n";
  folder.write("lines/a.jsonl", lines);
  Config c = config("masked-token");
  c.data.path = folder / "lines";
  EXPECT_THAT(refusal(c), HasSubstr("a.jsonl:1: no column text; set data.text_columns"));
  c.data.held_out = 0;
  EXPECT_THAT(refusal(c), HasSubstr("a.jsonl:1: no column text; set data.text_columns"));
  c.data.held_out = 0.3;
  c.data.text_columns = {"body"};
  const RunData streamed = open_data(c, models::built_in(), "", 0);
  EXPECT_EQ(streamed.training->samples(), -1);
  EXPECT_EQ(streamed.training->next().at("labels").sizes(), (std::vector<int64_t>{8, 16}));
  EXPECT_GT(streamed.held_out->samples(), 20);
  const std::string sources = concat("sources=a=", folder / "lines/a.jsonl", ",b=", folder / "lines");
  c.data.own = data_keys({sources});
  EXPECT_THAT(refusal(c), HasSubstr("leave one out"));
  c.data.path = "builtin";
  c.data.own = data_keys({sources, "weights=1"});
  EXPECT_THAT(refusal(c), HasSubstr("weights must be one for each source: got 1 for 2"));
  c.data.own = data_keys({concat("sources=", folder / "lines/a.jsonl")});
  EXPECT_THAT(refusal(c), HasSubstr("each source must be `name=path`"));
  c = config("class");
  c.data.path = folder / "lines/a.jsonl";
  c.data.text_columns = {"body"};
  c.data.own = data_keys({"label_column=kind"});
  EXPECT_THAT(open_data(c, models::built_in(), "", 0).shape.task().class_names,
              testing::ElementsAre("ham", "spam", "LABEL_2"));
}

TEST_F(BertData, ReportsUnreadFilesOfFolder) {
  folder.write("lines/a.jsonl", [] {
    std::string lines;
    for (int i = 0; i < 200; ++i) lines += concat("{\"text\": \"text number ", i, "\"}\n");
    return lines;
  }());
  folder.write("lines/b.arrow", "x");
  folder.write("texts/a.txt", std::string(2000, 'x'));
  folder.write("texts/b.txt.gz", "x");
  for (const auto& [name, notice] :
       {std::pair{"lines", "1 file is not read: 1 .arrow"}, {"texts", "1 file is not read: 1 .gz"}}) {
    Config c = config("masked-token");
    c.data.path = folder / name;
    EXPECT_THAT(open_data(c, models::built_in(), "", 0).training->take_notices(),
                testing::Contains(concat("in ", folder / name, " ", notice)));
  }
  EXPECT_THAT(open_data(of_hidden_spans(folder / "texts"), models::built_in(), "", 0).training->take_notices(),
              testing::Contains(concat("in ", folder / "texts", " 1 file is not read: 1 .gz")));
  Config c = config("masked-token");
  c.data.path = "builtin";
  EXPECT_THAT(open_data(c, models::built_in(), folder / "texts", 0).training->take_notices(), testing::IsEmpty());
}

TEST_F(BertData, ReadsBuiltinTextOfAnArchive) {
  folder.write("texts/a.md", std::string(3000, 'x'));
  folder.write("texts/b.md", "the other text");
  data::write_text_archive(folder / "texts", folder / "texts.gz");
  Config c = config("masked-token");
  c.data.path = "builtin";
  const RunData plain = open_data(c, models::built_in(), folder / "texts", 0);
  const RunData packed = open_data(c, models::built_in(), folder / "texts.gz", 0);
  EXPECT_EQ(packed.training->state(), plain.training->state());
  EXPECT_EQ(packed.held_out->state(), plain.held_out->state());
  EXPECT_TRUE(at::equal(packed.training->next().at("ids"), plain.training->next().at("ids")));
}

// The number may differ by 1 %, because files are held out whole: 4.5 to 5 % of the tokens.
TEST(QuickStart, HasTheSamplesThatTheReadmeShows) {
  const test::TemporaryFolder folder;
  data::write_text_archive(test::source_dir(), folder / "text.gz", data::project_text());
  const auto config = read_config<Config>(test::source_dir() + "/examples/quickstart.toml", {});
  const RunData data = open_data(config, models::built_in(), folder / "text.gz", 0);
  const std::string readme = read_file(test::source_dir() + "/README.md", 1 << 24);
  const size_t end = readme.find(" samples of 256 tokens"), begin = readme.rfind(' ', end - 1);
  ASSERT_NE(end, std::string::npos);
  const double shown = std::stod(readme.substr(begin, end - begin));
  EXPECT_NEAR(shown, static_cast<double>(data.training->samples()), 0.01 * shown);
}

TEST_F(BertData, RefusesVocabularyOfFolderModel) {
  models::ModelShape shape = models::built_in().resolve({.name = "bert-tiny"});
  shape.vocabulary = 200;
  folder.write("config.json", shape.architecture->hugging_face.to_json(shape).dump());
  Config c = config("masked-token");
  c.model = {.from = folder.path()};
  EXPECT_THAT(refusal(c), HasSubstr("set data.tokenizer to the one of that folder's model"));
}

/// A gray JPEG of 8 x 8 pixels, all with value 128.
const std::string kJpeg = std::string(
    "\377\330\377\333\000\103\000\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020"
    "\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020"
    "\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\377"
    "\300\000\013\010\000\010\000\010\001\001\021\000\377\304\000\024\000\001\000\000\000\000\000\000"
    "\000\000\000\000\000\000\000\000\000\000\377\304\000\024\020\001\000\000\000\000\000\000\000\000"
    "\000\000\000\000\000\000\000\000\377\332\000\010\001\001\000\000\077\000\077\377\331",
    141);

TEST(VitData, ReadsImagesFromFoldersOfClasses) {
  const test::TemporaryFolder folder;
  for (const char* name : {"ant", "bee"})
    for (int i = 0; i < 30; ++i) folder.write(concat("all/", name, "/", i, ".jpg"), kJpeg);
  Config c;
  c.model = {.name = "vit-tiny-cifar", .hidden = 16, .layers = 1, .heads = 2, .own = models::own_keys({"patch=8"})};
  c.data.path = folder / "all";
  c.data.held_out = 0.3;
  c.training.batch_size = 8;
  const RunData split = open_data(c, models::built_in(), "", 0);
  EXPECT_EQ(split.training->samples() + split.held_out->samples(), 60);
  EXPECT_EQ(split.training->next().at("images").sizes(), (std::vector<int64_t>{8, 3, 32, 32}));
  std::filesystem::create_directories(folder / "parts");
  std::filesystem::copy(folder / "all", folder / "parts/train", std::filesystem::copy_options::recursive);
  c.data.path = folder / "parts";
  const auto refusal = [&] { return test::thrown_message([&] { open_data(c, models::built_in(), "", 0); }); };
  EXPECT_THAT(refusal(), HasSubstr("add a folder test or val"));
  folder.write("parts/val/bee/1.jpg", kJpeg);
  const RunData parts = open_data(c, models::built_in(), "", 0);
  EXPECT_EQ(parts.training->samples(), 60);
  EXPECT_EQ(parts.held_out->samples(), 1);
  EXPECT_EQ(parts.held_out->next().at("labels")[0].item<int64_t>(), 1) << "numbered as the training pictures are";
  folder.write("parts/val/cow/1.jpg", kJpeg);
  EXPECT_THAT(refusal(), HasSubstr("the class cow of"));
  c.data.own = data_keys({"noise_density=0.15"});
  EXPECT_THAT(refusal(), HasSubstr("`data.noise_density` belongs to the objective target, and this run has class"));
}

}  // namespace
}  // namespace colossal::run::data_test
