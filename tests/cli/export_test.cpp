// What `colossal export` and `colossal quantize` keep of a model's source besides the weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "cli/outcome.h"
#include "colossal/base/config.h"
#include "colossal/base/json.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/registry.h"
#include "colossal/run/adapter_choice.h"
#include "colossal/run/exported_folder.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/end_tokens.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "support/adapter_folder.h"
#include "support/generated_text.h"

namespace colossal::cli::export_test {
namespace {

using nlohmann::json;
using ::testing::IsSupersetOf;
using ::testing::Not;

json read(const std::string& path) { return json::parse(test::read_all(path)); }

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.insert(std::filesystem::relative(entry.path(), folder).string());
  return files;
}

class Export : public testing::Test {
 protected:
  void run(const std::string& command, std::vector<std::string> words, const std::string& from, const std::string& to) {
    words.insert(words.end(), {"--from", folder / from, "--to", folder / to});
    const Outcome outcome = run_command(command, words);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  /// Changes keys of config.json of the folder "hf", and returns all.
  json configure(const json& keys) {
    json config = read(folder / "hf/config.json");
    config.update(keys);
    folder.write("hf/config.json", config.dump());
    return config;
  }
  /// Writes the run folder "tuned", trained from the folder "hf" with another dropout.
  void tune(double dropout, const std::string& tokenizer) {
    run::Config config;
    config.model = {.from = folder / "hf", .dropout = dropout};
    config.data.tokenizer = tokenizer;
    const RunFolder tuned(folder / "tuned");
    tuned.create();
    folder.write("tuned/config.toml", to_toml(config));
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::SavedModel saved = run::load_model(folder / "hf", mesh, {}, at::kCPU, {.tokenizer = "none"});
      checkpoint::TrainingState state;
      for (const nn::Parameter& p : saved.model->parameters())
        state.tensors.push_back({"model." + p.name, p.value.detach(), p.spec});
      checkpoint::save(tuned.checkpoints(), 1, state, mesh.all(), mesh.coordinates(), 1);
    });
  }
  test::TemporaryFolder folder;
};

TEST_F(Export, KeepsWhatDoesNotDescribeWeights) {
  test::write_model(folder, "llama-tiny");
  const std::vector<std::string> kept{"chat_template.jinja",      "generation_config.json",
                                      "preprocessor_config.json", "additional_chat_templates/tool_use.jinja",
                                      "1_Pooling/config.json",    "LICENSE"};
  for (const std::string& name : kept) folder.write("hf/" + name, "{}");
  const std::vector<std::string> left{
      "onnx/model.onnx",   "onnx/config.json",     ".cache/x.txt", "adapter_config.json",
      "pytorch_model.bin", "quantize_config.json", "params.json",  "model.safetensors.index.json"};
  for (const std::string& name : left) folder.write("hf/" + name, "{}");
  const json source = configure({{"eos_token_id", {2, 0}},
                                 {"bos_token_id", 1},
                                 {"pad_token_id", 3},
                                 {"torch_dtype", "float32"},
                                 {"use_cache", false},
                                 {"auto_map", {{"AutoModel", "modeling.Model"}}}});
  for (const std::string command : {"export", "quantize"}) {
    const std::string to = folder / command;
    run(command,
        command == "export" ? std::vector<std::string>{"--dtype", "bf16"}
                            : std::vector<std::string>{"--group-size", "32"},
        "hf", command);
    json want = source, got = read(to + "/config.json");
    want["dtype"] = want["torch_dtype"] = command == "export" ? "bfloat16" : "float16";
    EXPECT_EQ(got.contains("quantization_config"), command == "quantize");
    got.erase("quantization_config");
    EXPECT_EQ(got, want) << command;
    const std::set<std::string> files = files_in(to);
    EXPECT_THAT(files, IsSupersetOf(kept)) << command;
    for (const std::string& name : left) EXPECT_THAT(files, Not(testing::Contains(name))) << command;
  }
}

TEST_F(Export, ChangesOnlyTheKeysThatARunChanged) {
  test::write_model(folder, "gpt2-tiny");
  folder.write("hf/generation_config.json", R"({"eos_token_id": 9})");
  folder.write("hf/tokenizer.json", "{}");  // the run's tokenizer is another one
  const json source = configure({{"n_ctx", 77}, {"attn_pdrop", 0.25}, {"eos_token_id", 9}, {"summary_type", "mean"}});
  tune(0.5, "bytes");
  run("export", {}, "tuned", "out");
  json want = source;
  want["resid_pdrop"] = want["embd_pdrop"] = 0.5;
  want["dtype"] = "float32";
  want["eos_token_id"] = 256;
  want["bos_token_id"] = nullptr;
  EXPECT_EQ(read(folder / "out/config.json"), want);
  EXPECT_THAT(files_in(folder / "out"), Not(testing::Contains("generation_config.json")));
  EXPECT_NE(test::read_all(folder / "out/tokenizer.json"), "{}");
}

TEST_F(Export, WritesRotaryKeysOnlyOnce) {
  test::write_model(folder, "llama-tiny");
  json source = configure(json::object());
  const json theta = source["rope_theta"];
  for (const char* key : {"rope_theta", "rope_scaling"}) source.erase(key);
  source["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", theta}};
  folder.write("hf/config.json", source.dump());
  run("export", {}, "hf", "same");
  source["dtype"] = "float32";
  EXPECT_EQ(read(folder / "same/config.json"), source);
  // A model that was trained from the folder with other rotary positions.
  const models::Registry registry = models::built_in();
  models::ModelShape shape = registry.shape_of(source);
  auto own = shape.own.as<models::LlamaSizes>();
  own.layout.rotary.type = "linear", own.layout.rotary.scaling.factor = 2;
  shape.own = own, shape.positions *= 2;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    run::SavedModel saved;
    saved.model = std::make_unique<distributed::DistributedModel>(mesh, distributed::ParallelConfig{}, shape,
                                                                  nn::Parameters::Options{.without_memory = true},
                                                                  distributed::DistributedModel::Workload{});
    saved.tokenizer_source = saved.source = folder / "hf";
    source.erase("rope_parameters");
    source["rope_theta"] = theta;
    source["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
    source["max_position_embeddings"] = shape.positions;
    EXPECT_EQ(run::exported_config(saved, registry, at::kFloat), source);
  });
}

TEST_F(Export, GivesAByteModelATokenizer) {
  test::write_model(folder, "llama-tiny");
  run("export", {}, "run", "out");
  const json config = read(folder / "out/config.json");
  EXPECT_EQ(config["eos_token_id"], 256);  // the default of the config class is 2, a byte
  EXPECT_EQ(config["bos_token_id"], nullptr);
  const auto bytes = text::make_tokenizer("bytes"), written = text::make_tokenizer(folder / "out");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const std::string& text : {all, std::string("TEST(a, b)  {\n\n"), std::string()}) {
    EXPECT_EQ(written->encode_prompt(text), bytes->encode_prompt(text));
    EXPECT_EQ(written->decode(bytes->encode(text)), text);
  }
  EXPECT_EQ(written->vocabulary_size(), 257);
  EXPECT_EQ(written->end_id(), 256);
  EXPECT_EQ(written->begin_id(), -1);
}

// A run has files of its own beside those that describe its training.
TEST_F(Export, KeepsTheFilesOfARun) {
  test::write_model(folder, "gpt2-tiny");
  const text::TokenizerFiles words = text::files_of_bytes();
  folder.write("hf/tokenizer.json", words.tokenizer.dump());
  folder.write("hf/tokenizer_config.json", words.config.dump());
  folder.write("hf/chat_template.jinja", "{{ messages[0].content }}");
  folder.write("hf/generation_config.json", R"({"eos_token_id": 9})");
  folder.write("hf/LICENSE", "free");
  const json source = configure({{"n_ctx", 77}});
  tune(0.5, "auto");
  run::StartedModel model{
      .config = {.from = folder / "hf", .dropout = 0.5}, .tokenizer = folder / "hf", .end_ids = {3}};
  model.shape = run::resolve_shape(model.config, run::built_in());
  run::write_model_files(folder / "tuned", model, models::built_in(), false);
  for (const char* name : {"metrics.json", "prediction.json", "report.html", "log-rank-0.txt", "notes.txt"})
    folder.write(std::string("tuned/") + name, "of the run");
  run("export", {}, "tuned", "with-license");
  EXPECT_TRUE(files_in(folder / "with-license").contains("LICENSE")) << "its source is still there";
  std::filesystem::remove_all(folder / "hf");
  for (const std::string command : {"export", "quantize"}) {
    run(command, command == "export" ? std::vector<std::string>{} : std::vector<std::string>{"--group-size", "32"},
        "tuned", command);
    std::set<std::string> files = files_in(folder / command);
    std::erase_if(files, [](const std::string& name) { return name.starts_with("model"); });
    EXPECT_THAT(files, testing::UnorderedElementsAre("config.json", "tokenizer.json", "tokenizer_config.json",
                                                     "chat_template.jinja", "generation_config.json"));
    EXPECT_EQ(read(folder / command + "/generation_config.json")["eos_token_id"], json({9, 3}));
    const json config = read(folder / command + "/config.json");
    EXPECT_EQ(config["n_ctx"], 77) << "a key that no family reads";
    EXPECT_EQ(config["resid_pdrop"], 0.5);
  }
  run("export", {}, "tuned", "file.gguf");
  EXPECT_EQ(text::end_ids(folder / "file.gguf"), (std::vector<int64_t>{3, 9, 256}));
  EXPECT_TRUE(text::has_chat_template(folder / "file.gguf"));
  const Outcome spoken = run_command("generate", {"--from", folder / "tuned", "--prompt", "x", "--max-tokens", "2"});
  EXPECT_EQ(spoken.status, 0) << spoken.err;
}

// The merged model chats as the adapters do.
TEST_F(Export, GivesAMergedModelTheTemplateAndEndTokensOfItsAdapter) {
  test::write_model(folder, "llama-tiny");
  run("export", {}, "run", "base");  // with a tokenizer
  folder.write("base/chat_template.jinja", "base");
  folder.write("base/additional_chat_templates/tool_use.jinja", "base");
  folder.write("base/generation_config.json", R"({"eos_token_id": 256, "top_p": 0.5})");
  test::write_adapters(folder / "plain", {"q_proj"}, 2, 1);
  test::write_adapters(folder / "poet", {"q_proj"}, 2, 1);
  folder.write("poet/tokenizer_config.json", R"({"chat_template": "poet"})");
  folder.write("poet/generation_config.json", R"({"eos_token_id": 10, "top_p": 0.9})");
  run("export", {"--adapter", folder / "plain"}, "base", "plain-model");
  EXPECT_EQ(text::ChatTemplate::read(folder / "plain-model").source(), "base");
  run("export", {"--adapter", folder / "poet:0.5"}, "base", "poet-model");
  const auto found = text::ChatTemplate::read(folder / "poet-model");
  EXPECT_EQ(found.source(), "poet");
  EXPECT_EQ(found.names(), std::vector<std::string>{"default"});
  EXPECT_EQ(read(folder / "poet-model/generation_config.json"), json({{"eos_token_id", {256, 10}}, {"top_p", 0.5}}));
  EXPECT_EQ(text::make_tokenizer(folder / "poet-model")->end_id(), 256);
  run("export", {"--adapter", folder / "poet"}, "base", "poet.gguf");
  EXPECT_EQ(text::ChatTemplate::read(folder / "poet.gguf").source(), "poet");
  EXPECT_EQ(text::end_ids(folder / "poet.gguf"), (std::vector<int64_t>{10, 256}));
  const Outcome refused =
      run_command("export", {"--from", folder / "base", "--adapter", folder / "poet", "--to", folder / "poet"});
  EXPECT_THAT(refused.err, testing::HasSubstr("--to must not be --adapter, which would be overwritten"));
}

TEST_F(Export, WritesAdaptersWithoutOtherFilesOfTheBase) {
  test::write_model(folder, "llama-tiny");
  run("export", {}, "run", "base");
  for (const char* name : {"README.md", "LICENSE", "chat_template.jinja"})
    folder.write(std::string("base/") + name, "of the base");
  std::string lines;
  for (int line = 0; line < 40; ++line) lines += "a line of a text\n";
  const Outcome trained = run_command(
      "train", {folder.write("lora.toml", "[training]\nbatch_size = 2\n"), "--run.folder=" + folder / "lora",
                "--run.device=cpu", "--model.from=" + folder / "base", "--data.path=" + folder.write("text.txt", lines),
                "--data.sequence=16", "--adapter.kind=lora", "--adapter.rank=2", "--training.steps=1"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  run("export", {"--adapter-only"}, "lora", "peft");
  EXPECT_THAT(files_in(folder / "peft"),
              testing::UnorderedElementsAre("adapter_config.json", "adapter_model.safetensors", "tokenizer.json",
                                            "tokenizer_config.json", "chat_template.jinja", "generation_config.json"));
  run("export", {"--adapter", folder / "peft"}, "base", "merged");
  EXPECT_TRUE(files_in(folder / "merged").contains("README.md"));
}

// Generation of the loaded model ends where answers of the adapters end.
TEST_F(Export, LoadsAMergedAdapterWithItsEndTokens) {
  test::write_model(folder, "llama-tiny");
  run("export", {}, "run", "base");
  test::write_adapters(folder / "poet", {"q_proj"}, 2, 1);
  const auto ends = [&](const std::string& tokenizer) {
    std::vector<int64_t> ids;
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::Loading loading{.tokenizer = tokenizer, .adapter = run::parse_adapter(folder / "poet")};
      ids = run::load_model(folder / "base", mesh, {}, at::kCPU, loading).end_ids;
    });
    return ids;
  };
  EXPECT_EQ(ends(""), std::vector<int64_t>{256});
  folder.write("poet/config.json", R"({"eos_token_id": 11})");
  EXPECT_EQ(ends(""), (std::vector<int64_t>{11, 256})) << "as those of an adapter that requests choose";
  folder.write("poet/generation_config.json", R"({"eos_token_id": 10})");
  EXPECT_EQ(ends(""), (std::vector<int64_t>{10, 256}));
  EXPECT_EQ(ends("bytes"), std::vector<int64_t>{256}) << "ids of another tokenizer";
}

// A folder becomes a GGUF file and a folder again.
TEST_F(Export, KeepsEndTokensAndTemplatesInGguf) {
  test::write_model(folder, "llama-tiny");
  run("export", {}, "run", "folder");
  folder.write("folder/generation_config.json", R"({"eos_token_id": [7, 256]})");
  json options = read(folder / "folder/tokenizer_config.json");
  options["chat_template"] = {{{"name", "tool_use"}, {"template", "no"}}, {{"name", "default"}, {"template", "yes"}}};
  folder.write("folder/tokenizer_config.json", options.dump());
  run("export", {}, "folder", "file.gguf");
  EXPECT_EQ(text::end_ids(folder / "file.gguf"), (std::vector<int64_t>{7, 256}));
  run("export", {}, "file.gguf", "again");
  EXPECT_EQ(read(folder / "again/config.json")["eos_token_id"], json({7, 256}));
  EXPECT_EQ(read(folder / "again/tokenizer_config.json")["chat_template"], "yes");
}

}  // namespace
}  // namespace colossal::cli::export_test
