// What a changed key changes for a run that resumes.
#include "colossal/run/config_changes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "support/temporary_folder.h"

namespace colossal::run::config_changes_test {
namespace {

models::ModelShape shape_of(const Config& config) { return built_in().models.resolve(config.model, 300); }

nlohmann::json saved(const Config& config) {
  return {{"config", to_toml(config)}, {"model", values_of(shape_of(config))}};
}

Config with_model(const std::string& name, const std::vector<std::string>& own = {}) {
  Config config;
  config.model = {.name = name, .own = models::own_keys(own)};
  return config;
}

ConfigChanges changes(const nlohmann::json& progress, const Config& now) {
  return changes_since(progress, now, shape_of(now), built_in());
}

/// Expects that exactly this key differs and that it changes what the weights compute, for checkpoints of this version
/// and of one that saved the config alone.
void expect_another_model(const Config& before, const Config& now, const std::string& text) {
  nlohmann::json progress = saved(before);
  for (const char* version : {"with values of the model", "with the config alone"}) {
    SCOPED_TRACE(version);
    const ConfigChanges found = changes(progress, now);
    EXPECT_EQ(listed(found, KeyEffect::Model), text);
    EXPECT_EQ(listed(found), text);
    progress.erase("model");
  }
}

TEST(ConfigChanges, NameWhatChangesTheModel) {
  const Config llama = with_model("llama-tiny");
  expect_another_model(llama, with_model("llama-tiny", {"rope_theta=500000"}), "model.rope_theta = 10000.0 -> 5e+05");
  expect_another_model(with_model("llama-tiny", {"rope_theta=500000"}), llama, "model.rope_theta = 5e+05 -> 10000.0");
  expect_another_model(llama, with_model("llama-tiny", {"window=16"}), "model.window = 0 -> 16");
  expect_another_model(with_model("gpt2-tiny"), with_model("gpt2-tiny", {"activation=relu"}),
                       "model.activation = \"gelu_new\" -> \"relu\"");
  const std::vector<std::pair<std::string, std::string>> of_experts{
      {"used=1", "used = 2 -> 1"},
      {"score=sigmoid", "score = \"softmax\" -> \"sigmoid\""},
      {"normalize=false", "normalize = true -> false"},
      {"scale=2", "scale = 1.0 -> 2.0"},
      {"groups=2", "groups = 1 -> 2"}};
  for (const auto& [assignment, text] : of_experts)
    expect_another_model(with_model("llama-tiny", {"experts.count=4"}),
                         with_model("llama-tiny", {"experts.count=4", "experts." + assignment}),
                         "model.experts." + text);
}

TEST(ConfigChanges, TellHeadsOfTheSameWidth) {
  Config before = with_model("llama-tiny"), now = before;
  const models::ModelShape shape = shape_of(before);
  now.model.heads = shape.heads * 2, now.model.kv_heads = shape.kv_heads * 2;
  const std::string text = listed(changes(saved(before), now), KeyEffect::Model);
  EXPECT_NE(text.find("model.heads = "), std::string::npos) << text;
  EXPECT_NE(text.find("model.kv_heads = "), std::string::npos) << text;
}

TEST(ConfigChanges, SeparateTrainingFromTheRest) {
  const Config before = with_model("llama-tiny", {"experts.count=4"});
  Config now = with_model("llama-tiny", {"experts.count=4", "experts.balance_loss=0.5"});
  now.model.dropout = 0.25;
  now.optimizer.learning_rate = 0.5;
  now.training.accumulate = 2;
  now.training.save_every = 7;
  now.training.ema = 0.5;  // of the weights as they train
  now.parallel.zero = 1;
  const ConfigChanges found = changes(saved(before), now);
  EXPECT_EQ(listed(found, KeyEffect::Model), "");
  const std::string training = listed(found, KeyEffect::Training);
  for (const char* key : {"model.dropout = 0.0 -> 0.25", "model.experts.balance_loss = 0.01 -> 0.5",
                          "optimizer.learning_rate = ", "training.accumulate = 1 -> 2"})
    EXPECT_NE(training.find(key), std::string::npos) << key << " in " << training;
  EXPECT_EQ(listed(found, KeyEffect::None),
            "parallel.zero = 0 -> 1, training.ema = 0.0 -> 0.5, training.save_every = 0 -> 7");
  Config dense = with_model("llama-tiny"), accumulates = dense;
  accumulates.training.accumulate = 2;
  EXPECT_EQ(listed(changes(saved(dense), accumulates), KeyEffect::None), "training.accumulate = 1 -> 2");
}

TEST(ConfigChanges, NameLayoutsThatLearnSomethingElse) {
  const auto training = [](const Config& before, const Config& now) {
    return listed(changes(saved(before), now), KeyEffect::Training);
  };
  const Config one = with_model("llama-tiny", {"experts.count=4"});
  Config stages = one;
  stages.parallel.pipeline.size = 2;
  EXPECT_EQ(training(one, stages),
            "micro-batches = 1 -> 8 (model.experts.balance_loss counts the tokens of a micro-batch)");
  const Config even = with_model("llama-tiny", {"experts.count=4", "experts.balance_over=rank"});
  Config replicas = even;
  replicas.parallel.data = 2;
  EXPECT_NE(training(even, replicas).find("routing ranks = 1 -> 2"), std::string::npos);
  Config rounded = one, plain = one;
  rounded.parallel.expert.size = plain.parallel.expert.size = 2;
  rounded.parallel.expert.compress = "fp8";
  EXPECT_EQ(training(plain, rounded), "parallel.expert.compress = \"none\" -> \"fp8\"");
  Config dense = with_model("llama-tiny"), dense_stages = dense;
  dense_stages.parallel.pipeline.size = 2;
  EXPECT_EQ(training(dense, dense_stages), "");
}

TEST(ConfigChanges, CountTablesOfAdaptersToTheModel) {
  Program program = built_in();
  program.adapters.add(
      {.table = "own", .make = [](const Config&, const OwnKeys&, const models::ModelShape&) { return nn::Adapter(); }});
  const models::ModelShape shape = shape_of(with_model("llama-tiny"));
  EXPECT_EQ(effect_of("own.scale", shape, program), KeyEffect::Model);
  EXPECT_EQ(effect_of("adapter.scale", shape, program), KeyEffect::Model);
  EXPECT_EQ(effect_of("ranking.margin", shape, program), KeyEffect::Training);
  EXPECT_EQ(effect_of("model.rope_theta", shape, program), KeyEffect::Model);
  EXPECT_EQ(effect_of("model.experts.z_loss", shape, program), KeyEffect::Training);
  EXPECT_EQ(effect_of("data.path", shape, program), KeyEffect::None);
}

TEST(ConfigChanges, FollowAFolderThatMoved) {
  test::TemporaryFolder folder;
  Config before = with_model("llama-tiny");
  nlohmann::json config = shape_of(before).architecture->hugging_face.to_json(shape_of(before));
  config["model_type"] = "llama";
  const auto write = [&](const char* name, double theta) {
    config["rope_theta"] = theta;
    create_folder(folder / name);
    write_file(folder / name + std::string("/config.json"), config.dump());
  };
  write("here", 20000), write("there", 20000), write("other", 30000);
  Config now = before;
  before.model.name = now.model.name = "";
  before.model.from = folder / "gone", now.model.from = folder / "there";
  Config at_first = before;
  at_first.model.from = folder / "here";
  nlohmann::json progress = saved(at_first);
  progress["config"] = to_toml(before);
  const std::string moved = concat("model.from = \"", before.model.from, "\" -> \"");
  EXPECT_EQ(listed(changes(progress, now)), moved + now.model.from + "\"");
  now.model.from = folder / "other";
  EXPECT_EQ(listed(changes(progress, now), KeyEffect::Model), "model.rope_theta = 20000.0 -> 30000.0");
  progress.erase("model");  // saved by an older version: the folder of now is all that is known
  EXPECT_EQ(listed(changes(progress, now), KeyEffect::Model), "");
}

TEST(ConfigChanges, IgnoreADamagedModel) {
  const Config before = with_model("llama-tiny"), now = with_model("llama-tiny", {"rope_theta=500000"});
  for (const nlohmann::json& damaged : {nlohmann::json(7), nlohmann::json{{"model.rope_theta", 3}}}) {
    nlohmann::json progress = saved(before);
    progress["model"] = damaged;
    EXPECT_EQ(listed(changes(progress, now)), "model.rope_theta = 10000.0 -> 5e+05");
  }
}

TEST(ConfigChanges, ListThoseOfAModulesTraining) {
  Config before = with_model("llama-tiny"), now = with_model("gpt2-tiny");
  now.optimizer.momentum = 0.5;
  now.data.sequence = 7;
  now.parallel.data = 2;
  EXPECT_EQ(listed(changes_since(saved(before), now), KeyEffect::Training), "optimizer.momentum = 0.9 -> 0.5");
  EXPECT_EQ(listed(changes_since(saved(before), now), KeyEffect::Model), "");
}

}  // namespace
}  // namespace colossal::run::config_changes_test
