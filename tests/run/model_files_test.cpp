// The files of the model that a run stores in its folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "colossal/base/base64.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/registry.h"
#include "colossal/run/exported_folder.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "support/temporary_folder.h"

namespace colossal::run::model_files_test {
namespace {

using nlohmann::json;
using ::testing::UnorderedElementsAre;

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.insert(entry.path().filename().string());
  return files;
}

json read(const std::string& path) { return json::parse(test::read_all(path)); }

std::string tokenizer_of_bytes() { return text::files_of_bytes().tokenizer.dump(); }

class ModelFiles : public testing::Test {
 protected:
  ModelFiles() { create_folder(to); }
  /// A preset with a tokenizer.
  StartedModel preset(const std::string& name, const std::string& tokenizer) const {
    const models::ModelConfig config{.name = name};
    return {.config = config, .shape = registry.resolve(config, 257), .tokenizer = tokenizer};
  }
  std::optional<std::string> write(const StartedModel& model, bool resumes = false) const {
    return write_model_files(to, model, registry, resumes);
  }
  models::Registry registry = models::built_in();
  test::TemporaryFolder folder;
  std::string to = folder / "run";
};

TEST_F(ModelFiles, DescribeAPreset) {
  EXPECT_EQ(write(preset("llama-tiny", "bytes")), std::nullopt);
  EXPECT_THAT(files_in(to),
              UnorderedElementsAre("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"));
  EXPECT_TRUE(registry.shape_of(read(to + "/config.json")) == preset("llama-tiny", "bytes").shape);
  EXPECT_EQ(read(to + "/generation_config.json"), json({{"eos_token_id", 256}}));
  for (const std::string& name : files_in(to)) EXPECT_THAT(model_file_names(), testing::Contains(name));
}

TEST_F(ModelFiles, FitTheTaskOfTheModel) {
  write(preset("bert-tiny", "bytes"));
  EXPECT_FALSE(files_in(to).contains("generation_config.json")) << "it writes no text";
  std::filesystem::remove_all(to), create_folder(to);
  write(preset("vit-tiny-cifar", "bytes"));
  EXPECT_THAT(files_in(to), UnorderedElementsAre("config.json")) << "it reads no text";
  std::filesystem::remove_all(to), create_folder(to);
  write(preset("t5-tiny", "bytes"));
  EXPECT_EQ(read(to + "/generation_config.json")["decoder_start_token_id"],
            read(to + "/config.json")["decoder_start_token_id"]);
  std::filesystem::remove_all(to), create_folder(to);
  EXPECT_EQ(write(preset("palm-tiny", "bytes")), std::nullopt);
  EXPECT_THAT(files_in(to), UnorderedElementsAre("tokenizer.json", "tokenizer_config.json", "generation_config.json"))
      << "no config.json can describe it";
}

TEST_F(ModelFiles, KeepTheFolderOfTheTokenizer) {
  const text::TokenizerFiles files = text::files_of_bytes();
  folder.write("words/tokenizer.json", files.tokenizer.dump());
  folder.write("words/tokenizer_config.json", files.config.dump());
  folder.write("words/additional_chat_templates/tool_use.jinja", "tools");
  folder.write("words/chat_template.jinja", "plain");
  folder.write("words/config.json", "{}");
  folder.write("words/weights.txt", "");
  StartedModel model = preset("llama-tiny", folder / "words");
  write(model);
  EXPECT_THAT(files_in(to),
              UnorderedElementsAre("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                                   "chat_template.jinja", "additional_chat_templates"));
  EXPECT_EQ(test::read_all(to + "/chat_template.jinja"), "plain");
  EXPECT_EQ(test::read_all(to + "/additional_chat_templates/tool_use.jinja"), "tools");

  std::filesystem::remove_all(to), create_folder(to);
  model.chat_template = "of the data";
  write(model);
  EXPECT_EQ(test::read_all(to + "/chat_template.jinja"), "of the data");
  EXPECT_FALSE(files_in(to).contains("additional_chat_templates")) << "they have another form";
}

TEST_F(ModelFiles, KeepOnlyTheFileThatIsTheTokenizer) {
  const std::string bytes = tokenizer_of_bytes();
  folder.write("words/bytes.json", bytes);
  folder.write("words/tokenizer.json", "of another tokenizer");
  folder.write("words/vocab.txt", "of another tokenizer");
  folder.write("words/tokenizer_config.json", text::files_of_bytes().config.dump());
  write(preset("llama-tiny", folder / "words/bytes.json"));
  EXPECT_THAT(files_in(to),
              UnorderedElementsAre("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"));
  EXPECT_EQ(test::read_all(to + "/tokenizer.json"), bytes);

  std::filesystem::remove_all(to), create_folder(to);
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte)
    ranks += concat(base64(std::string(1, static_cast<char>(byte))), " ", byte, "\n");
  folder.write("words/mine.tiktoken", ranks);
  folder.write("words/encoding.json", R"({"pattern": "\\p{L}+", "special_tokens": {"<|endoftext|>": 256}})");
  StartedModel model = preset("llama-tiny", folder / "words/mine.tiktoken");
  write(model);
  EXPECT_EQ(test::read_all(to + "/mine.tiktoken"), ranks);
  EXPECT_EQ(files_in(to).count("encoding.json"), 1u);
  EXPECT_EQ(files_in(to).count("tokenizer.json"), 0u);
}

TEST_F(ModelFiles, LimitFoldersOfAdaptersToWhatAnswersNeed) {
  SavedModel saved;
  const std::string out = folder / "adapters";
  create_folder(out);
  write_adapter_companions(saved, out);
  EXPECT_THAT(files_in(out), testing::IsEmpty()) << "a run of an older version";
  StartedModel model = preset("llama-tiny", "bytes");
  model.chat_template = "of the data", model.end_ids = {10};
  write(model);
  folder.write("hf/README.md", "of the base");
  folder.write("hf/LICENSE", "of the base");
  folder.write("run/README.md", "of the run");
  saved.files = to, saved.source = folder / "hf", saved.tokenizer_source = to;
  write_adapter_companions(saved, out);
  EXPECT_THAT(files_in(out), UnorderedElementsAre("tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                                  "generation_config.json"));
  EXPECT_EQ(read(out + "/generation_config.json")["eos_token_id"], json({256, 10}));
}

TEST_F(ModelFiles, ChangeThoseOfTheSource) {
  const StartedModel source = preset("llama-tiny", "bytes");
  json config = source.shape.architecture->hugging_face.to_json(source.shape);
  config["eos_token_id"] = 7, config["custom"] = "kept";
  folder.write("hf/config.json", config.dump());
  folder.write("hf/tokenizer.json", tokenizer_of_bytes());
  folder.write("hf/generation_config.json", R"({"top_p": 0.5})");
  folder.write("hf/README.md", "");
  StartedModel model{.config = {.from = folder / "hf", .positions = 1024, .dropout = 0.25},
                     .tokenizer = folder / "hf",
                     .end_ids = {8}};
  model.shape = resolve_shape(model.config, models::built_in());
  EXPECT_EQ(write(model), std::nullopt);
  EXPECT_THAT(files_in(to), UnorderedElementsAre("config.json", "tokenizer.json", "generation_config.json"));
  json want = config;
  want["max_position_embeddings"] = 1024;
  json got = read(to + "/config.json");
  EXPECT_EQ(got["dtype"], "float32");
  want["dtype"] = got["dtype"];
  EXPECT_EQ(got, want);
  EXPECT_EQ(read(to + "/generation_config.json"), json({{"top_p", 0.5}, {"eos_token_id", {7, 8}}}))
      << "without its own ends the file has those of config.json";
  models::ModelConfig own = model.config;
  own.from = to;
  EXPECT_TRUE(resolve_shape(own, models::built_in()) == model.shape) << "also keys that config.json cannot have";
}

TEST_F(ModelFiles, LeaveOutAConfigThatLosesKeys) {
  models::Registry lossy;
  for (const auto& row : registry.architectures()) {
    models::Architecture copy = *row;
    if (copy.name == "gpt2")
      copy.hugging_face.to_json = [](const models::ModelShape& shape) {
        const models::Registry all = models::built_in();
        json config = all.at("gpt2")->hugging_face.to_json(shape);
        config["layer_norm_epsilon"] = 0.5;
        return config;
      };
    lossy.add(std::move(copy));
  }
  const StartedModel source = preset("gpt2-tiny", "bytes");
  json config = source.shape.architecture->hugging_face.to_json(source.shape);
  folder.write("hf/config.json", config.dump());
  Program program = built_in();
  program.models = lossy;
  StartedModel model{.config = {.from = folder / "hf", .dropout = 0.5}, .tokenizer = "bytes"};
  model.shape = resolve_shape(model.config, program);
  model.shape.norm_epsilon = 1e-3;
  const auto notice = write_model_files(to, model, lossy, false);
  ASSERT_TRUE(notice.has_value());
  EXPECT_EQ(*notice, "keep " + (folder / "hf") +
                         " as long as this run is used: config.json of a gpt2 cannot express model.norm_epsilon");
  EXPECT_FALSE(files_in(to).contains("config.json"));
}

}  // namespace
}  // namespace colossal::run::model_files_test
