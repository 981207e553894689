// Every value of every key that has a fixed set of values is planned: on one rank and on two, for CPUs and for GPUs.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/predict/step.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"

namespace colossal::predict::key_values_test {
namespace {

using Flags = std::vector<std::string>;

struct Choice {
  std::string key;
  std::vector<std::string> values;
  Flags model;  ///< flags of a model that has the key
};

/// Returns the values of a key, or nothing if any value is allowed: "one of 1d, 2d" or "true or false".
std::vector<std::string> values_of(const KeyHelp& key) {
  if (key.type == "true or false") return {"true", "false"};
  constexpr char kOneOf[] = "one of ";
  if (!key.type.starts_with(kOneOf)) return {};
  std::vector<std::string> values;
  std::istringstream list(key.type.substr(sizeof(kOneOf) - 1));
  for (std::string value; list >> value;) {
    if (value.ends_with(',')) value.pop_back();
    values.push_back(value);
  }
  return values;
}

/// Returns the keys of the sections, then those of each architecture that no earlier one has, then the architectures.
std::vector<Choice> choices() {
  std::vector<Choice> all;
  std::set<std::string> known;
  const auto add = [&](const KeyHelp& key, const std::string& name, const Flags& model) {
    if (std::vector<std::string> values = values_of(key); !values.empty() && known.insert(name).second)
      all.push_back({name, std::move(values), model});
  };
  for (const KeyHelp& key : describe_config(run::Config())) add(key, key.key, {});
  Choice presets{"model.name", {}, {"--model.layers=2"}}, settled{"model.name", {}, {}};
  const run::Program program = run::built_in();
  for (const auto& row : program.models.architectures()) {
    if (row->presets.empty()) continue;
    const models::Preset& first = row->presets.front();
    const models::ModelShape shape = program.models.resolve({.name = first.name});
    if (shape.task().objective.empty()) continue;  // a part of other models
    // The step rule of folding models is of a layer that this one does not include; tests/cli/plan_run_test.cpp plans
    // them.
    if (shape.part<models::FoldingSizes>().single > 0) continue;
    Choice& like = row->uses("layers") ? presets : settled;  // or its own keys settle the number of layers
    Flags model = like.model;
    model.insert(model.begin(), "--model.name=" + first.name);
    for (const KeyHelp& key : models::describe_own(first.shape.own)) add(key, "model." + key.key, model);
    like.values.push_back(first.name);
  }
  all.insert(all.end(), {presets, settled});
  return all;
}

using FlagsOf = std::map<std::string, Flags>;

/// Flags without which a value has no effect or is refused, by key, key=value or table.
const FlagsOf& needs() {
  const Flags stretched{"--model.rope_original_positions=128", "--model.rope_factor=2"};
  static const FlagsOf all{
      {"model.name=flux-tiny", {"--model.single=1"}},
      {"model.name=open-sora-2-tiny", {"--model.channels=4", "--vae.from=autoencoder-kl-tiny", "--model.single=1"}},
      {"parallel.sequence.mode=dsp", {"--model.name=stdit3-tiny"}},
      {"optimizer.name=galore", {"--optimizer.rank=4"}},
      {"optimizer.nesterov", {"--optimizer.name=sgd"}},
      {"optimizer.step_scale", {"--optimizer.name=muon"}},
      {"optimizer.learning_rate_scaling", {"--optimizer.reference_batch=4"}},
      {"optimizer.learning_rate_scaling=none", {}},
      {"optimizer.stochastic_rounding", {"--precision.mode=bf16", "--precision.masters=false"}},
      {"precision.masters", {"--precision.mode=bf16"}},
      {"precision.fp8_scaling", {"--precision.mode=fp8"}},
      {"memory.placement", {"--memory.host=64MiB"}},
      {"model.experts", {"--model.experts.count=4"}},
      {"parallel.expert", {"--model.experts.count=4"}},
      {"model.distillation_head", {"--model.name=deit-tiny-cifar"}},
      {"model.rope_type=dynamic", stretched},
      {"model.rope_type=yarn", stretched},
      {"model.rope_type=llama3", stretched},
      {"model.rope_type=linear", {"--model.rope_factor=2"}},
      {"model.rope_type=longrope",
       {stretched[0], stretched[1], "--model.rope_short_factors=[1,1,1,1]", "--model.rope_long_factors=[2,2,2,2]"}},
      {"model.rope_truncate", {"--model.rope_type=yarn", stretched[0], stretched[1]}}};
  return all;
}

/// Axes of two or more ranks, by key, key=value or table; for all others two replicas with ZeRO 1.
const FlagsOf& axes() {
  static const FlagsOf all{{"parallel.auto", {}},
                           {"parallel.compress", {"--parallel.data=2", "--parallel.zero=3"}},
                           {"parallel.reshard_after_forward", {"--parallel.data=2", "--parallel.zero=3"}},
                           {"parallel.expert", {"--parallel.expert.size=2"}},
                           {"parallel.expert.tensor", {"--parallel.expert.size=2", "--parallel.tensor.size=2"}},
                           {"parallel.sequence", {"--parallel.sequence.size=2"}},
                           {"parallel.tensor", {"--parallel.tensor.size=2"}},
                           {"parallel.tensor.keep_gathered", {"--parallel.tensor={size=2,sequence=true}"}},
                           {"parallel.tensor.mode=2d", {"--parallel.tensor.size=4"}},
                           {"parallel.tensor.mode=2.5d", {"--parallel.tensor={size=8,depth=2}"}},
                           {"parallel.tensor.mode=3d", {"--parallel.tensor.size=8"}},
                           {"parallel.pipeline", {"--parallel.pipeline={size=2,micro_batches=4}"}}};
  return all;
}

/// Returns the flags of the longest of "table", "table.key" and "table.key=value" that the map has, or null.
const Flags* flags_in(const FlagsOf& map, const std::string& key, const std::string& value) {
  const Flags* found = nullptr;
  for (const std::string& name : {key.substr(0, key.rfind('.')), key, key + "=" + value})
    if (const auto at = map.find(name); at != map.end()) found = &at->second;
  return found;
}

Flags flags_of(const Choice& choice, const std::string& value, int64_t ranks) {
  Flags flags{"--data.sequence=32", "--training.batch_size=8"};
  const auto add = [&](const Flags& more) { flags.insert(flags.end(), more.begin(), more.end()); };
  add(choice.model);
  if (ranks > 1) {
    const Flags* own = flags_in(axes(), choice.key, value);
    add(own ? *own : Flags{"--parallel.data=2", "--parallel.zero=1"});
  }
  if (const Flags* needed = flags_in(needs(), choice.key, value)) add(*needed);
  add({"--" + choice.key + "=" + value});
  return flags;
}

void expect_plan(Flags flags, const std::string& device) {
  flags.insert(flags.begin(), "--run.device=" + device);
  std::string all;
  for (const std::string& flag : flags) all += " " + flag;
  SCOPED_TRACE(all);
  try {
    run::Config config = run::read_given_config("", flags).config;
    config.validate();
    const run::ResolvedModel model = run::resolve_model(config, run::built_in());
    const plan::Profile profile = plan::find_profile("h100-8x");
    const plan::Prediction prediction =
        predict_step({config, train::NamedModel{.shape = model.shape, .objective = model.objective.objective}},
                     cluster_of(config.parallel.ranks(), profile));
    EXPECT_GT(prediction.step_seconds, 0);
    EXPECT_GT(prediction.peak_bytes, 0);
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(KeyValues, PlanOnOneRankAndTwo) {
  for (const Choice& choice : choices())
    for (const std::string& value : choice.values) {
      if (value == "axial" || choice.key == "parallel.sequence.overlap") continue;  // of folding models
      expect_plan(flags_of(choice, value, 1), "cpu");
      for (const char* device : {"cpu", "cuda"}) expect_plan(flags_of(choice, value, 2), device);
    }
}

}  // namespace
}  // namespace colossal::predict::key_values_test
