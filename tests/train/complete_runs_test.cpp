// Run folders that are complete: runs that are loaded, exported and resumed after their source is deleted, and runs
// that start from a run folder or a GGUF file.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/gguf/export.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/models/registry.h"
#include "colossal/run/exported_folder.h"
#include "colossal/run/external_names.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "train/whole_runs.h"

namespace colossal::train::complete_runs_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using Values = std::map<std::string, at::Tensor>;

/// The model that a command loads from a folder.
struct Loaded {
  models::ModelShape shape;
  std::vector<int64_t> end_ids;
  Values values;
};

Loaded loaded(const std::string& from) {
  Loaded result;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    const run::SavedModel saved = run::load_model(from, mesh, {}, at::kCPU, {.dtype = at::kFloat});
    result = {saved.model->model().shape, saved.end_ids, {}};
    for (const nn::Parameter& p : saved.model->parameters()) result.values[p.name] = p.value.detach().clone();
  });
  return result;
}

/// Writes the model of a folder as a folder, as `colossal export` does, or as a GGUF file of that type.
void export_to(const std::string& to, const std::string& from, const std::string& type = "") {
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    const run::SavedModel saved = run::load_model(from, mesh, {}, at::kCPU, {.tokenizer = "none"});
    const models::ModelShape& shape = saved.model->model().shape;
    const json config = run::exported_config(saved, models::built_in(), at::kFloat);
    if (!type.empty())
      return checkpoint::export_gguf(to, saved.model->parameters(), run::external_names(shape), config,
                                     text::gguf_of_tokenizer(saved.tokenizer_source, shape.vocabulary), type,
                                     mesh.all());
    checkpoint::export_weights(to, saved.model->parameters(), run::external_names(shape), config, mesh.group("data"));
    run::write_companions(saved, to);
  });
}

void expect_equal(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << what << ": " << name;
}

json json_in(const std::string& path) { return json::parse(read_file(path, 1 << 24)); }

/// The samples of texts, with answers that end at tokens of their own.
class Answers final : public run::Objective {
 public:
  explicit Answers(std::unique_ptr<run::Objective> inner, std::vector<int64_t> ends)
      : inner_(std::move(inner)), ends_(std::move(ends)) {}
  run::OpenedData open(const run::DataRequest& request) const override {
    run::OpenedData data = inner_->open(request);
    data.end_ids = ends_;
    data.chat_template = "{{ messages[0].content }}!";
    return data;
  }
  tensor::Batch example(int64_t rows) const override { return inner_->example(rows); }
  void check(const tensor::Batch& batch) const override { inner_->check(batch); }
  double weight(const tensor::Batch& batch) const override { return inner_->weight(batch); }
  at::Tensor loss(const models::Model& model, const models::States& end,
                  const nn::ForwardContext& step) const override {
    return inner_->loss(model, end, step);
  }

 private:
  std::unique_ptr<run::Objective> inner_;
  std::vector<int64_t> ends_;
};

run::Program program_with_answers(const std::vector<int64_t>& ends) {
  run::Program program = run::built_in();
  auto& make = program.objectives.at("next-token").make;
  make = [inner = make, ends](const run::Config& config, const run::OwnTables& tables,
                              const models::ModelShape& shape) {
    return std::make_unique<Answers>(inner(config, tables, shape), ends);
  };
  return program;
}

class CompleteRuns : public Run {
 protected:
  /// A short run of a new LLaMA, or of the model at `from`.
  run::Config tiny(const std::string& name, const std::string& from = "") const {
    run::Config c = make(name, 1, 1);
    c.model = from.empty() ? models::ModelConfig{.name = "llama-tiny",
                                                 .hidden = 32,
                                                 .layers = 2,
                                                 .heads = 4,
                                                 .kv_heads = 2,
                                                 .ffn = 48,
                                                 .positions = 32}
                           : models::ModelConfig{.from = from};
    c.training.steps = 2;
    c.training.save_every = 1;
    c.optimizer.warmup_steps = 0;
    c.training.evaluate_batches = 0;
    return c;
  }
  std::string at(const std::string& name) const { return base + "/" + name; }
  /// Trains a LLaMA and exports it to the folder "hf", with a template, end tokens and options.
  void write_source() const {
    const run::Config c = tiny("first");
    train(c, Start::New);
    export_to(at("hf"), c.run.folder);
    write_file(at("hf/chat_template.jinja"), "{{ messages[0].content }}?");
    write_file(at("hf/generation_config.json"),
               R"({"eos_token_id": [9, 256], "temperature": 0.25, "do_sample": true})");
  }
  void forget(const std::string& name) const { std::filesystem::remove_all(at(name)); }
  /// Runs `c` without updates that change a weight, and returns what it saved.
  Values started(run::Config c) const {
    c.optimizer.learning_rate = 0;
    c.training.steps = 1;
    c.training.save_every = 0;
    train(c, Start::New);
    return loaded(c.run.folder).values;
  }
};

TEST_F(CompleteRuns, NeedNoSourceAfterTheirStart) {
  write_source();
  run::Config c = tiny("run", at("hf"));
  c.model.positions = 64;
  c.model.own = models::own_keys({"rope_type=linear", "rope_factor=2"});
  c.model.dropout = 0.1;
  const Values whole = train(c, Start::New);
  const Loaded before = loaded(c.run.folder);
  EXPECT_EQ(before.shape.positions, 64);
  EXPECT_EQ(before.shape.dropout, 0.1);
  expect_equal(before.values, whole, "loaded");
  export_to(at("exported"), c.run.folder);
  forget("hf"), forget("first");
  const Loaded after = loaded(c.run.folder);
  EXPECT_TRUE(after.shape == before.shape);
  EXPECT_EQ(after.end_ids, (std::vector<int64_t>{9, 256}));
  expect_equal(after.values, whole, "loaded without its source");
  export_to(at("again"), c.run.folder);
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                           "generation_config.json", "model.safetensors"})
    EXPECT_EQ(read_file(at("again/") + name, 1 << 24), read_file(at("exported/") + name, 1 << 24)) << name;
  EXPECT_EQ(json_in(at("again/config.json"))["max_position_embeddings"], 64);
  EXPECT_FALSE(std::filesystem::exists(at("again/metrics.json"))) << "a file of the run";
  expect_equal(train(c, Start::Resume, 0, 1), whole, "resumed without its source");
  EXPECT_EQ(loaded(at("again")).values.size(), whole.size());
  const std::string stored = read_file(c.run.folder + "/config.toml", 1 << 20);
  EXPECT_THAT(stored, HasSubstr("from = \"" + at("hf") + "\"")) << "what it started from";
  run::Config moved = c;
  moved.model.from = at("elsewhere");
  EXPECT_THAT(test::thrown_message([&] { train(moved, Start::Resume); }), HasSubstr("there is no file or folder"));
}

TEST_F(CompleteRuns, NeedTheSourceIfTheirOwnFilesAreDamaged) {
  write_source();
  const run::Config c = tiny("run", at("hf"));
  train(c, Start::New);
  forget("hf");
  const auto refusal = [&] { return test::thrown_message([&] { loaded(c.run.folder); }); };
  const std::string own = c.run.folder + "/config.json", text = read_file(own, 1 << 20);
  write_file(own, text.substr(0, text.size() / 2));
  EXPECT_THAT(refusal(), HasSubstr(own));
  std::filesystem::remove(own);
  EXPECT_THAT(refusal(), HasSubstr("the run " + c.run.folder + " needs model.from = \"" + at("hf") +
                                   "\": there is no such file or folder"));
  write_file(own, text);
  std::filesystem::remove(c.run.folder + "/tokenizer.json");
  EXPECT_THAT(refusal(), HasSubstr("there is no " + at("hf") + ": a tokenizer must be"));
}

TEST_F(CompleteRuns, WriteMissingFilesWhenTheyResume) {
  write_source();
  const run::Config c = tiny("run", at("hf"));
  train(c, Start::New);
  const std::string folder = c.run.folder;
  const std::string config = read_file(folder + "/config.json", 1 << 20);
  std::filesystem::remove(folder + "/config.json");
  std::filesystem::remove(folder + "/tokenizer.json");
  write_file(folder + "/generation_config.json", R"({"eos_token_id": 9})");
  train(c, Start::Resume, 0, 1);
  EXPECT_EQ(read_file(folder + "/config.json", 1 << 20), config);
  EXPECT_TRUE(std::filesystem::exists(folder + "/tokenizer.json"));
  EXPECT_EQ(json_in(folder + "/generation_config.json"), json({{"eos_token_id", 9}})) << "it was there";
}

TEST_F(CompleteRuns, StoreTheTokenizerOfBytes) {
  const run::Config c = tiny("run");
  train(c, Start::New);
  EXPECT_EQ(json_in(c.run.folder + "/tokenizer.json"), text::files_of_bytes().tokenizer);
  EXPECT_EQ(json_in(c.run.folder + "/generation_config.json")["eos_token_id"], 256);
  EXPECT_EQ(json_in(c.run.folder + "/config.json")["model_type"], "llama");
  const run::Config next = tiny("next", c.run.folder);
  EXPECT_EQ(next.tokenizer(), "bytes");
  train(next, Start::New);
  forget("run");
  EXPECT_EQ(loaded(next.run.folder).end_ids, std::vector<int64_t>{256});
}

TEST_F(CompleteRuns, StopAtTheEndsOfTheirData) {
  write_source();
  const run::Config c = tiny("run", at("hf"));
  const auto train_with = [&](const std::vector<int64_t>& ends, Start start) {
    comm::run_ranks(1, [&](comm::World& world) {
      TrainerOptions options{.start = start};
      options.program = program_with_answers(ends);
      Trainer(world, c, options).run();
    });
  };
  train_with({10, 9}, Start::New);
  const json options = json_in(c.run.folder + "/generation_config.json");
  EXPECT_EQ(options["eos_token_id"], json({9, 256, 10}));
  EXPECT_EQ(options["temperature"], 0.25) << "other options stay";
  EXPECT_EQ(loaded(c.run.folder).end_ids, (std::vector<int64_t>{9, 10, 256}));
  EXPECT_THAT(log_of(c), HasSubstr("generation stops at \xC4\x89 (9), \xC4\x8A (10), <|endoftext|> (256)"));
  EXPECT_EQ(read_file(c.run.folder + "/chat_template.jinja", 1 << 20), "{{ messages[0].content }}!");
  train_with({11}, Start::Resume);
  EXPECT_EQ(json_in(c.run.folder + "/generation_config.json")["eos_token_id"], json({9, 256, 10, 11}));
  EXPECT_THAT(test::thrown_message([&] { train_with({257}, Start::Overwrite); }),
              HasSubstr("must be an id of the model's vocabulary of 257: got 257"));
}

TEST_F(CompleteRuns, RestoreTheirFilesIfAnotherRunFails) {
  write_source();
  const run::Config c = tiny("run", at("hf"));
  train(c, Start::New);
  const std::string config = read_file(c.run.folder + "/config.json", 1 << 20);
  run::Config other = c;
  other.model = {.name = "gpt2-tiny", .hidden = 32, .layers = 1, .heads = 4, .positions = 32};
  train_and_die(other, Start::Overwrite, 1);
  EXPECT_EQ(json_in(c.run.folder + "/config.json")["model_type"], "gpt2");
  EXPECT_FALSE(std::filesystem::exists(c.run.folder + "/chat_template.jinja")) << "of the other run";
  train(c, Start::Resume);
  EXPECT_EQ(read_file(c.run.folder + "/config.json", 1 << 20), config);
  EXPECT_TRUE(std::filesystem::exists(c.run.folder + "/chat_template.jinja"));
}

TEST_F(CompleteRuns, StartFromARunOrAFileInEveryLayout) {
  const run::Config first = tiny("first");
  train(first, Start::New);
  export_to(at("f32.gguf"), first.run.folder, "f32");
  const Values want = loaded(first.run.folder).values;
  std::vector<std::pair<std::string, std::function<void(run::Config&)>>> layouts{
      {"one rank", [](run::Config&) {}},
      {"data", [](run::Config& c) { c.parallel.data = 2, c.parallel.zero = 3; }},
      {"tensor", [](run::Config& c) { c.parallel.data = 2, c.parallel.tensor.size = 2, c.parallel.zero = 1; }},
      {"2d", [](run::Config& c) { c.parallel.tensor = {.size = 4, .mode = "2d"}; }},
      {"pipeline", [](run::Config& c) { c.parallel.pipeline.size = 2, c.parallel.pipeline.micro_batches = 2; }},
      {"host", [](run::Config& c) { c.memory.host = 64 << 20; }},
      {"masters", [](run::Config& c) { c.precision.mode = "bf16"; }}};
  for (const std::string from : {"first", "f32.gguf"})
    for (const auto& [name, change] : layouts) {
      if (from != "first" && name != "tensor" && name != "masters") continue;  // files are read by one function
      run::Config c = tiny(name + from, at(from));
      change(c);
      expect_equal(started(c), want, name + " from " + from);
    }
}

TEST_F(CompleteRuns, StartFromTheNewestCheckpointOfARun) {
  run::Config first = tiny("first");
  train(first, Start::New);
  const Values early = loaded(first.run.folder).values;
  first.training.steps = 3;
  train(first, Start::Resume);
  run::Config c = tiny("next", first.run.folder);
  c.data.tokenizer = "bytes";
  const Values got = started(c);
  expect_equal(got, loaded(first.run.folder).values, "newest");
  EXPECT_FALSE(at::equal(got.at("norm.weight"), early.at("norm.weight")));
  forget("first");
  expect_equal(loaded(c.run.folder).values, got, "without the first run");
}

TEST_F(CompleteRuns, RefuseSourcesThatCannotBeTrained) {
  const run::Config first = tiny("first");
  train(first, Start::New);
  export_to(at("q8.gguf"), first.run.folder, "q8_0");
  const auto refusal = [&](const run::Config& c, Start start = Start::New) {
    return test::thrown_message([&] { train(c, start); });
  };
  EXPECT_THAT(refusal(tiny("a", at("q8.gguf"))),
              HasSubstr("model.from must be a file whose weights are not quantized (F32, F16 or BF16): got " +
                        at("q8.gguf") + " with "));
  run::Config itself = tiny("first", first.run.folder);
  EXPECT_THAT(refusal(itself, Start::Overwrite), HasSubstr("run.folder must be another folder than model.from"));
  run::Config inside = tiny("first");
  inside.data.tokenizer = first.run.folder + "/tokenizer.json";
  EXPECT_THAT(refusal(inside, Start::Overwrite),
              HasSubstr("data.tokenizer must not be in the folder of the run that is overwritten"));
  run::Config longer = tiny("b", first.run.folder);
  longer.model.hidden = 64;
  EXPECT_THAT(refusal(longer), HasSubstr("remove hidden from [model]"));
  std::filesystem::remove_all(first.run.folder + "/checkpoints");
  EXPECT_THAT(refusal(tiny("c", first.run.folder)), HasSubstr("holds no complete checkpoint"));
}

// A classifier starts from a run that predicted masked tokens.
TEST_F(CompleteRuns, GiveARunAnotherHead) {
  run::Config masked = tiny("masked");
  masked.model = {.name = "bert-tiny", .hidden = 32, .layers = 2, .heads = 4, .positions = 32};
  train(masked, Start::New);
  write_file(at("labels.tsv"), [] {
    std::string lines;
    for (int i = 0; i < 64; ++i) lines += concat(i % 3, "\ta text of kind ", i % 3, "\n");
    return lines;
  }());
  run::Config c = tiny("classes", masked.run.folder);
  c.model.own = models::own_keys({"objective=class", "classes=3"});
  c.data.path = at("labels.tsv");
  c.optimizer.learning_rate = 0;
  c.training.steps = 1;
  train(c, Start::New);
  EXPECT_THAT(log_of(c), HasSubstr("that part of the head is initialized at random"));
  const auto values_of = [](const std::string& folder) {
    Values values;
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const auto saved = run::load_model(folder, mesh, {}, at::kCPU, {.tokenizer = "none", .headless = true});
      for (const nn::Parameter& p : saved.model->parameters()) values[p.name] = p.value.detach().clone();
    });
    return values;
  };
  const Values before = values_of(masked.run.folder);
  forget("masked");
  const Values got = values_of(c.run.folder);
  EXPECT_EQ(got.at("head.weight").size(0), 3);
  size_t compared = 0;
  for (const auto& [name, value] : before) {
    if (name.starts_with("head.")) continue;
    EXPECT_TRUE(at::equal(got.at(name), value)) << name;
    ++compared;
  }
  EXPECT_GT(compared, 10u);
}

}  // namespace
}  // namespace colossal::train::complete_runs_test
