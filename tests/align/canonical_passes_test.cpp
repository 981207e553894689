// Every family of the library: either there is a reason why its passes are not canonical, or training gives drawn
// tokens the log-probabilities with which they were drawn, to the bit.
#include "colossal/run/objectives/alignment/canonical_passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "align/drawn_updates.h"
#include "colossal/models/registry.h"
#include "colossal/ops/activation.h"
#include "colossal/run/adapters.h"
#include "train/zero_runs.h"

namespace colossal::align::canonical_passes_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Flags = std::vector<std::string>;

/// A run of one block in fp32 unless its flags say otherwise, and a part of the reason why its passes are not
/// canonical. No reason = they are.
struct Case {
  const char* name;
  Flags flags;
  const char* obstacle = "";
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// The config and the model of a run. Sums of products are so long that libraries and panels add them in different
/// orders.
struct Described {
  explicit Described(const Flags& flags) {
    const ConfigDocument base = ConfigDocument::parse(to_toml(train::config_of(train::Layout{})), "base");
    ConfigDocument on_top;
    for (const char* flag : {"--model.layers=1", "--training.clip=0", "--optimizer.learning_rate=0.01"})
      on_top.set(flag);
    for (const std::string& flag : flags) on_top.set(flag);
    config = run::read_given_config(base, on_top).config;
    if (config.parallel.pipeline.size > 1) config.parallel.pipeline.micro_batches = 2;
    shape = models::built_in().resolve(config.model);
    adapter = run::choose_adapter(config, run::built_in_adapters(), shape).adapter;
    trained = config;
    trained.tables = {};  // the objective of the engine has none
  }
  std::string obstacle(bool has_panels = true) const { return run::canonical_obstacle(config, shape, has_panels); }

  run::Config config, trained;
  models::ModelShape shape;
  nn::Adapter adapter;
};

/// Draws and trains twice. Expects the same log-probabilities.
void expect_canonical(const Described& d) {
  comm::run_ranks(static_cast<int>(d.config.parallel.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, d.config.parallel.axes());
    const auto engine = train::initialize(
        mesh, d.trained,
        train::NamedModel{.shape = d.shape, .adapter = d.adapter, .panels = updates::panels(/*in_training=*/true)});
    const std::vector<RolloutPrompt> prompts = updates::prompts_of(mesh.coordinates().index("data"), 2);
    for (const bool packed : {false, true}) {
      const std::vector<RolloutAnswer> answers = updates::drawn(*engine, packed ? 1 : 0, prompts);
      updates::expect_drawn(*engine, updates::update_of(prompts, answers, packed), packed ? "second" : "first");
    }
  });
}

class CanonicalPasses : public testing::TestWithParam<Case> {};

TEST_P(CanonicalPasses, GiveTheDrawnLogProbabilitiesOrNameAReason) {
  const Case& c = GetParam();
  const Described d(c.flags);
  EXPECT_THAT(d.obstacle(), c.obstacle[0] == 0 ? testing::Matcher<std::string>(IsEmpty()) : HasSubstr(c.obstacle));
  if (d.obstacle().empty()) expect_canonical(d);
}

Flags model(const std::string& preset, const Flags& more = {}) {
  Flags flags{"--model.name=" + preset};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}
Flags in_bf16(const std::string& preset, const Flags& more = {}) {
  Flags flags = model(preset, more);
  flags.emplace_back("--precision.mode=bf16");
  return flags;
}

const char* const kGelu = "model.activation = \"gelu\"";

// Families that share a kind of layer run it in one of the dtypes.
INSTANTIATE_TEST_SUITE_P(
    Families, CanonicalPasses,
    testing::Values(
        Case{"gpt2", model("gpt2-tiny")}, Case{"gpt2_bf16", in_bf16("gpt2-tiny")},
        Case{"gpt_neox", model("pythia-tiny"), kGelu},
        Case{"gpt_neox_gelu_fast", in_bf16("pythia-tiny", {"--model.activation=gelu_fast"})},
        Case{"gptj", model("gptj-tiny")}, Case{"falcon", model("falcon-tiny"), kGelu},
        Case{"falcon_gelu_new", model("falcon-tiny", {"--model.activation=gelu_new"})},
        Case{"falcon_alibi", in_bf16("falcon-tiny", {"--model.activation=gelu_new", "--model.alibi=true"})},
        Case{"opt", in_bf16("opt-tiny")}, Case{"bloom", model("bloom-tiny")}, Case{"bloom_bf16", in_bf16("bloom-tiny")},
        Case{"palm", in_bf16("palm-tiny")}, Case{"llama", model("llama-tiny")},
        Case{"llama_bf16", in_bf16("llama-tiny")}, Case{"llama_window", model("llama-tiny", {"--model.window=7"})},
        Case{"mixtral", model("mixtral-tiny")}, Case{"mixtral_bf16", in_bf16("mixtral-tiny")},
        Case{"qwen2", model("qwen2.5-tiny")}, Case{"qwen3", in_bf16("qwen3-tiny")},
        Case{"qwen3_moe", model("qwen3-moe-tiny")}, Case{"gemma2", model("gemma2-tiny"), "model.logit_cap = 30"},
        Case{"gemma2_without_cap", in_bf16("gemma2-tiny", {"--model.logit_cap=0", "--model.layers=2"})},
        Case{"phi3", in_bf16("phi3-tiny")},
        Case{"deepseek", model("deepseek-tiny", {"--model.layers=2"}), "the attention to latents of deepseek"},
        Case{"t5", model("t5-tiny", {"--model.layers=0"}), "the architecture t5"}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Keys, CanonicalPasses,
    testing::Values(
        Case{"silu_without_gates", model("gpt2-tiny", {"--model.activation=silu"}), "model.activation = \"silu\""},
        Case{"yarn", model("llama-tiny",
                           {"--model.rope_type=yarn", "--model.rope_factor=4", "--model.rope_original_positions=128"})},
        Case{"dynamic",
             model("llama-tiny",
                   {"--model.rope_type=dynamic", "--model.rope_factor=4", "--model.rope_original_positions=8"}),
             "rotary positions that depend on the length"},
        Case{"three_experts", model("mixtral-tiny", {"--model.experts.used=3", "--model.experts.scale=1.7"})},
        Case{"shared_expert", in_bf16("mixtral-tiny", {"--model.experts.shared=1", "--model.experts.normalize=false"})},
        Case{"plain_experts", in_bf16("gpt2-tiny", {"--model.experts.count=4"})},
        Case{"sigmoid", model("mixtral-tiny", {"--model.experts.score=sigmoid"}), "model.experts.score"},
        Case{"capacity", model("mixtral-tiny", {"--model.experts.capacity=2"}), "model.experts.capacity = 2"}),
    [](const auto& info) { return info.param.name; });

const char *const kLora = "--adapter.kind=lora", *const kNf4 = "--adapter.base=nf4",
                  *const kInt8 = "--adapter.base=int8";
const char *const kAll = "--adapter.targets=[\"all-linear\", \"experts\"]", *const kTwo = "--parallel.tensor.size=2",
                  *const kTwoOfExperts = "--parallel.expert.size=2", *const kTwoStages = "--parallel.pipeline.size=2";

INSTANTIATE_TEST_SUITE_P(
    Runs, CanonicalPasses,
    testing::Values(
        Case{"zero1", model("llama-tiny", {"--parallel.data=2", "--parallel.zero=1"})},
        Case{"zero3_nf4", in_bf16("llama-tiny", {"--parallel.data=2", "--parallel.zero=3", kLora, kNf4})},
        Case{"zero3_experts", model("mixtral-tiny", {"--parallel.data=2", "--parallel.zero=3"})},
        Case{"tensor4", in_bf16("gpt2-tiny", {"--parallel.tensor.size=4"})},
        Case{"tensor3_dora", model("llama-tiny", {"--parallel.tensor.size=3", "--adapter.kind=dora"})},
        Case{"tensor_deals_experts", model("mixtral-tiny", {kTwo})},
        Case{"tensor_splits_experts", in_bf16("mixtral-tiny", {kTwo, "--parallel.expert.tensor=split"})},
        Case{"fp8_to_experts", model("mixtral-tiny", {kTwoOfExperts, "--parallel.expert.compress=fp8"}),
             "parallel.expert.compress = \"fp8\""},
        Case{"expert_nodes", model("mixtral-tiny", {"--parallel.expert.size=4", "--parallel.expert.node=2"})},
        Case{"pipeline_nf4", model("llama-tiny", {kTwoStages, "--model.layers=2", kLora, kNf4})},
        Case{"lora_dropout", model("llama-tiny", {kLora, "--adapter.dropout=0.1", "--model.dropout=0.1"})},
        Case{"trained_modules", in_bf16("llama-tiny", {kLora, "--adapter.trained=[\"embed_tokens\"]"})},
        Case{"tensor_2d", model("llama-tiny", {"--parallel.tensor.size=4", "--parallel.tensor.mode=2d"}),
             "parallel.tensor.mode = \"2d\""},
        Case{"megatron_sequence", model("llama-tiny", {kTwo, "--parallel.tensor.sequence=true"}),
             "parallel.tensor.sequence"},
        Case{"tiers", model("llama-tiny", {"--memory.host=64MiB", "--parallel.zero=3"})},
        Case{"sequence", model("llama-tiny", {"--parallel.sequence.size=2", "--parallel.sequence.mode=ring"}),
             "parallel.sequence.size = 2"}),
    [](const auto& info) { return info.param.name; });

const char* const kWide = "--model.ffn=900";  // products of codes add so many numbers in another order than panels

INSTANTIATE_TEST_SUITE_P(
    ExpertCodes, CanonicalPasses,
    testing::Values(Case{"nf4", model("mixtral-tiny", {kWide, kLora, kNf4})},
                    Case{"nf4_adapted", in_bf16("mixtral-tiny", {kWide, kLora, kNf4, kAll})},
                    Case{"int8", in_bf16("mixtral-tiny", {kWide, kLora, kInt8})},
                    Case{"bf16_in_fp32", model("mixtral-tiny", {kWide, kLora, "--adapter.base=bf16", kAll})},
                    Case{"tensor_deals_nf4", in_bf16("mixtral-tiny", {kWide, kTwo, kLora, kNf4})},
                    Case{"tensor_splits_nf4",
                         model("mixtral-tiny", {kWide, kTwo, "--parallel.expert.tensor=split", kLora, kNf4, kAll})},
                    Case{"tensor_splits_int8",
                         model("mixtral-tiny", {kWide, kTwo, "--parallel.expert.tensor=split", kLora, kInt8})},
                    Case{"ranks_nf4", model("mixtral-tiny", {kWide, kTwoOfExperts, kLora, kNf4, kAll})},
                    Case{"ranks_int8", in_bf16("mixtral-tiny", {kWide, kTwoOfExperts, kLora, kInt8})},
                    Case{"zero3_int8",
                         model("mixtral-tiny", {kWide, "--parallel.data=2", "--parallel.zero=3", kLora, kInt8})}),
    [](const auto& info) { return info.param.name; });

TEST(CanonicalObstacle, NamesPrecisionDeviceAndPanels) {
  for (const char* mode : {"fp64", "fp16", "fp8"}) {
    const Described d(model("llama-tiny", {concat("--precision.mode=", mode)}));
    EXPECT_THAT(d.obstacle(), HasSubstr(concat("precision.mode = \"", mode, "\"")));
    EXPECT_FALSE(run::default_panels(d.config));
  }
  const Described bf16(model("llama-tiny", {"--precision.mode=bf16"}));
  EXPECT_TRUE(run::default_panels(bf16.config));
  EXPECT_THAT(bf16.obstacle(/*has_panels=*/false), HasSubstr("rollout.panels = false"));
  EXPECT_THAT(run::canonical_obstacle(bf16.config, bf16.shape, true, at::Device("cuda:0")), HasSubstr("cuda"));
  EXPECT_FALSE(run::default_panels(bf16.config, at::Device("cuda:0")));
  for (const char* tier : {"--memory.host=1GiB", "--memory.disk=scratch", "--memory.device=1GiB"}) {
    const Described d(model("llama-tiny", {"--precision.mode=bf16", tier}));
    EXPECT_FALSE(run::default_panels(d.config)) << tier;
    EXPECT_THAT(d.obstacle(/*has_panels=*/false), HasSubstr("tiers of [memory]"));
  }
}

// A family that is added to the library needs a row in canonical_passes.cpp and cases above, or has a reason.
TEST(CanonicalObstacle, KnowsEveryArchitecture) {
  std::set<std::string> canonical;
  const models::Registry registry = models::built_in();
  for (const auto& architecture : registry.architectures()) {
    const models::ModelShape shape = registry.resolve({.name = architecture->presets.front().name});
    if (run::canonical_obstacle(train::config_of(train::Layout{}), shape, true).empty())
      canonical.insert(architecture->name);
  }
  EXPECT_EQ(canonical,
            (std::set<std::string>{"bloom", "gpt2", "gptj", "llama", "opt", "palm", "phi3", "qwen2", "qwen3"}));
}

}  // namespace
}  // namespace colossal::align::canonical_passes_test
