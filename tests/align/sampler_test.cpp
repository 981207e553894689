// Answers drawn from a model in training: its current weights, one draw for any other requests, and in canonical passes
// the log-probabilities of training to the bit.
#include "colossal/align/rollouts/sampler.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "align/drawn_updates.h"
#include "colossal/base/error.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/low_rank_adapter.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/zero_runs.h"

namespace colossal::align::sampler_test {
namespace {

using testing::HasSubstr;
using train::Layout;
using updates::drawn;
using updates::draws_of;
using updates::expect_drawn;
using updates::kEnd;
using updates::kWords;
using updates::options;
using updates::panels;
using updates::prompts_of;
using updates::update_of;

models::ModelShape with_positions(models::ModelShape shape, int64_t positions = 64) {
  shape.positions = positions;
  shape.vocabulary = kWords;
  return shape;
}

models::ModelShape small_gpt2() { return with_positions(test::tiny_gpt2()); }
models::ModelShape small_llama() { return with_positions(test::tiny_llama()); }
/// Sums of products so long that libraries and panels add them in different orders.
models::ModelShape gpt2() {
  models::ModelShape shape = with_positions(test::tiny_gpt2());
  shape.hidden = 800, shape.head_dim = 200;
  return shape;
}
models::ModelShape llama(int64_t positions = 64) {
  models::ModelShape shape = with_positions(test::tiny_llama(), positions);
  shape.hidden = 96, shape.head_dim = 24, shape.ffn = 900;
  return shape;
}

run::Config run_config(const Layout& layout) {
  run::Config config = train::config_of(layout);
  config.optimizer.learning_rate = 0.01;
  config.training.clip = 0;
  if (layout.pipeline > 1) config.parallel.pipeline.micro_batches = 2;
  return config;
}

using Drawn = std::tuple<int64_t, int64_t, std::vector<int64_t>, std::vector<double>, std::string>;

Drawn of(const RolloutAnswer& a) { return {a.prompt, a.number, a.ids, a.log_probabilities, a.finish_reason}; }

std::vector<Drawn> of(const std::vector<RolloutAnswer>& answers) {
  std::vector<Drawn> all;
  for (const RolloutAnswer& answer : answers) all.push_back(of(answer));
  return all;
}

double update(train::Engine& engine, int64_t step) { return test::train_step(engine, step, train::kText); }

/// What differs between the models of a test.
struct Model {
  std::string name;
  models::ModelShape shape;
  nn::Adapter adapter{};
};

Model with_low_rank(models::ModelShape shape, const std::string& base = "", const std::string& kind = "lora") {
  run::LowRankKeys keys{.kind = kind, .rank = 2, .alpha = 8};
  if (!base.empty()) keys.base = base;
  if (shape.part<models::MixtureSizes>().experts > 0) keys.targets = {"all-linear", "experts"};
  return {kind + base, shape, run::low_rank_adapter(keys, shape)};
}

models::ModelShape mixture() {
  models::ModelShape shape = llama();
  models::LlamaSizes own;
  own.experts = {.count = 4, .used = 2, .ffn = 12, .balance_loss = 0.05};
  shape.own = own;
  shape.set(models::MixtureSizes{own.experts.count});
  return shape;
}

models::ModelShape preset(const std::string& name) {
  models::ModelShape shape = models::built_in().resolve({.name = name});
  shape.vocabulary = kWords;
  return shape;
}

models::ModelShape of_family(const std::string& name) {
  models::ModelShape shape = llama();
  shape.architecture = models::built_in().at(name);
  shape.own = shape.architecture->own;
  return shape;
}

enum class Panels { None, Drawing, Training };

struct Case {
  Layout layout;
  Model model;
  Panels panels = Panels::Drawing;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.layout.name << c.model.name; }

class SamplerLayouts : public testing::TestWithParam<Case> {};

TEST_P(SamplerLayouts, DrawsWithTheCurrentWeights) {
  const Case& c = GetParam();
  run::Config config = run_config(c.layout);
  config.memory.recompute = "block";  // forward passes of recomputed layers have no gradients
  const std::string folder = test::empty_folder("sampler_" + c.layout.name + c.model.name);
  comm::run_ranks(c.layout.ranks(), [&](comm::World& world) {
    comm::Mesh mesh(world, config.parallel.axes());
    train::NamedModel model{.shape = c.model.shape, .adapter = c.model.adapter};
    const auto plain = train::initialize(mesh, config, model);
    if (c.panels != Panels::None) model.panels = panels(c.panels == Panels::Training);
    const auto engine = train::initialize(mesh, config, model);
    const std::vector<RolloutPrompt> prompts = prompts_of(mesh.coordinates().index("data"));
    std::set<std::vector<Drawn>> seen;
    for (int64_t round = 0; round < 3; ++round) {
      const std::vector<RolloutAnswer> answers = drawn(*engine, 0, prompts);
      EXPECT_EQ(engine->panel_bytes() > 0, c.panels == Panels::Training);
      for (const RolloutAnswer& answer : answers) EXPECT_EQ(answer.version, round);
      test::save(*engine, folder);
      const auto fresh = train::initialize(mesh, config, model);
      test::load(*fresh, folder);
      EXPECT_EQ(of(answers), of(drawn(*fresh, 0, prompts))) << "round " << round;
      seen.insert(of(answers));
      const double loss = update(*engine, round), of_plain = update(*plain, round);
      if (c.panels != Panels::Training) EXPECT_EQ(loss, of_plain) << "panels for drawing have no effect on training";
    }
    EXPECT_EQ(seen.size(), 3u) << "the draws follow from what was learnt";
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SamplerLayouts,
    testing::Values(
        Case{{.name = "One"}, {"Gpt2", small_gpt2()}},
        Case{{.name = "OneBf16", .precision = "bf16"}, {"Llama", small_llama()}},
        Case{{.name = "Data", .data = 2}, {"Llama", small_llama()}},
        Case{{.name = "Zero1", .zero = 1, .data = 2}, {"Gpt2", small_gpt2()}},
        Case{{.name = "Zero2", .zero = 2, .data = 2}, {"Llama", small_llama()}},
        Case{{.name = "Zero3", .zero = 3, .data = 2}, {"Gpt2", small_gpt2()}},
        Case{{.name = "Tensor", .tensor = 2}, {"Llama", small_llama()}},
        Case{{.name = "Pipeline", .pipeline = 2}, {"Gpt2", small_gpt2()}},
        Case{{.name = "PipelineZero3", .zero = 3, .data = 2, .pipeline = 2}, {"Llama", small_llama()}},
        Case{{.name = "Values", .zero = 3, .data = 2}, {"Gpt2", small_gpt2()}, Panels::None},
        Case{{.name = "Canonical"}, {"Llama", small_llama()}, Panels::Training},
        Case{{.name = "CanonicalZero3", .zero = 3, .data = 2}, with_low_rank(small_gpt2()), Panels::Training},
        Case{{.name = "Adapter"}, with_low_rank(small_llama())},
        Case{{.name = "AdapterZero3", .zero = 3, .data = 2}, with_low_rank(small_gpt2())},
        Case{{.name = "AdapterTensor", .tensor = 2}, with_low_rank(small_llama(), "nf4")}),
    [](const auto& info) { return info.param.layout.name + info.param.model.name; });

// The cache of the second sampler holds few sequences, so requests wait and are preempted.
TEST(Sampler, DrawsEachAnswerAsAlone) {
  for (const char* precision : {"fp32", "bf16"})
    for (const Model& model : {Model{"gpt2", gpt2()}, with_low_rank(llama()), with_low_rank(llama(), "int8")}) {
      SCOPED_TRACE(model.name + precision);
      comm::run_ranks(1, [&](comm::World& world) {
        const auto engine = train::initialize(
            world, run_config({.precision = precision}),
            train::NamedModel{.shape = model.shape, .adapter = model.adapter, .panels = panels(false)});
        update(*engine, 0);
        const std::vector<RolloutPrompt> prompts = prompts_of(0, 2);
        const std::vector<RolloutAnswer> together = drawn(*engine, 7, prompts);
        SamplerOptions scarce = options();
        scarce.cache_bytes = 800000;  // three blocks of the GPT-2 in fp32
        EXPECT_EQ(of(together), of(drawn(*engine, scarce, 7, draws_of(prompts))));
        EXPECT_NE(together[0].ids, together[1].ids) << "answers to a prompt differ";
        std::vector<RolloutAnswer> alone;
        for (const RolloutPrompt& prompt : prompts)
          for (const RolloutAnswer& answer : drawn(*engine, 7, {prompt})) alone.push_back(answer);
        EXPECT_EQ(of(together), of(alone));
        EXPECT_NE(of(together), of(drawn(*engine, 8, prompts)));
      });
    }
}

TEST(Sampler, EndsAnswersWithTheDrawnEndToken) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto engine = train::initialize(world, run_config({}), gpt2());
    const std::vector<RolloutPrompt> prompts = prompts_of(0, 2);
    int64_t ended = 0;
    for (const RolloutAnswer& answer : drawn(*engine, options(), 0, draws_of(prompts, 40))) {
      const bool is_ended = answer.finish_reason == "stop";
      if (!is_ended) EXPECT_EQ(answer.finish_reason, "length");
      ended += is_ended;
      EXPECT_EQ(answer.ids.size(), answer.log_probabilities.size());
      EXPECT_EQ(std::count(answer.ids.begin(), answer.ids.end(), kEnd), is_ended ? 1 : 0);
      EXPECT_EQ(answer.ids.back() == kEnd, is_ended);
      if (!is_ended) EXPECT_EQ(answer.ids.size(), 9u);
    }
    EXPECT_GT(ended, 0);
  });
}

// A run that was killed has stored some of the answers.
TEST(Sampler, DrawsTheGivenNumbersAlone) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto engine =
        train::initialize(world, run_config({}), train::NamedModel{.shape = llama(), .panels = panels(false)});
    const std::vector<RolloutPrompt> prompts = prompts_of(0, 2);
    const std::vector<Draw> all = draws_of(prompts), some{all[10], all[2], all[3], all[11], all[0]};
    const std::vector<RolloutAnswer> whole = drawn(*engine, 0, prompts), part = drawn(*engine, options(), 0, some);
    EXPECT_EQ(of(part), of({whole[10], whole[2], whole[3], whole[11], whole[0]}));
    EXPECT_TRUE(drawn(*engine, options(), 0, {}).empty());
  });
}

/// Draws, and returns the number of steps of the engine and the number of answers that were complete after each.
std::vector<size_t> complete_after_steps(train::Engine& engine, const SamplerOptions& options,
                                         const std::vector<Draw>& draws) {
  std::vector<size_t> after;
  size_t complete = 0;
  Sampler(engine, options)
      .draw(0, draws, [&](const RolloutAnswer&) { ++complete; }, [&] { after.push_back(complete); });
  return after;
}

TEST(Sampler, ReadsAllPromptsBeforeItWaitsForSharedOnes) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto engine = train::initialize(world, run_config({}), llama());
    SamplerOptions endless = options();
    endless.end_ids.clear();
    const std::vector<RolloutPrompt> prompts = prompts_of(0, 2);
    ASSERT_EQ(prompts[3].ids.size(), 18u) << "longer than a block";
    const auto steps = [&](const std::vector<RolloutPrompt>& of) {
      return complete_after_steps(*engine, endless, draws_of(of));
    };
    std::vector<size_t> at_once(9, 0), shared(10, 0);
    at_once[8] = 9;
    EXPECT_EQ(steps({prompts[0], prompts[1], prompts[2]}), at_once) << "all answers begin in the first step";
    shared[8] = 10, shared[9] = 12;
    EXPECT_EQ(steps({prompts[3], prompts[0], prompts[1], prompts[2]}), shared)
        << "two answers to the long prompt begin when its block is there";
    SamplerOptions large_blocks = endless;
    large_blocks.block_tokens = 32;
    at_once[8] = 3;
    EXPECT_EQ(complete_after_steps(*engine, large_blocks, draws_of({prompts[3]})), at_once) << "no block is full";
  });
}

TEST(Sampler, PassesAnswersOnWhileOthersAreDrawn) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto engine = train::initialize(world, run_config({}), llama());
    const std::vector<RolloutPrompt> prompts = prompts_of(0, 2);
    const std::vector<size_t> after = complete_after_steps(*engine, options(), draws_of(prompts, 20));
    EXPECT_EQ(after.back(), 80u);
    EXPECT_GT(after[after.size() / 2], 0u);
  });
}

/// A prompt that the model cannot read.
RolloutPrompt too_long() { return {.index = 7, .ids = std::vector<int64_t>(65, 1)}; }

TEST(Sampler, RefusesAPromptOfOneRankOnAllRanks) {
  for (const int zero : {0, 3})
    comm::run_ranks(2, [&](comm::World& world) {
      const auto engine = train::initialize(world, run_config({.zero = zero, .data = 2}),
                                            train::NamedModel{.shape = small_llama(), .panels = panels(false)});
      std::vector<RolloutPrompt> prompts = prompts_of(world.rank());
      const std::vector<Drawn> before = of(drawn(*engine, 0, prompts));
      if (world.rank() == 1) prompts.push_back(too_long());
      int64_t calls = 0;
      const auto count = [&](const RolloutAnswer&) { ++calls; };
      EXPECT_THAT(test::thrown_message([&] { Sampler(*engine, options()).draw(0, draws_of(prompts), count); }),
                  HasSubstr("the prompt must fit the model's positions: got 65 tokens, 64 positions (rank 1 of 2)"));
      EXPECT_EQ(calls, 0);
      if (world.rank() == 1) prompts.pop_back();
      EXPECT_EQ(of(drawn(*engine, 0, prompts)), before) << "the engine works on";
    });
}

TEST(Sampler, ThrowsErrorsOfOneRankOnAllRanksWhenAllIsDrawn) {
  for (const int zero : {0, 3})
    for (const bool is_idle : {false, true})
      comm::run_ranks(2, [&](comm::World& world) {
        const auto engine = train::initialize(world, run_config({.zero = zero, .data = 2}), small_llama());
        const std::vector<RolloutPrompt> prompts = prompts_of(world.rank());
        size_t complete = 0, idle = 0;
        const auto done = [&](const RolloutAnswer&) {
          ++complete;
          if (!is_idle && world.rank() == 1 && complete == 2) throw std::runtime_error("no room");
        };
        const auto work = [&] {
          ++idle;
          if (is_idle && world.rank() == 1 && idle == 2) throw Error("reward", "the command hangs");
        };
        EXPECT_THAT(test::thrown_message([&] { Sampler(*engine, options()).draw(0, draws_of(prompts), done, work); }),
                    HasSubstr(is_idle ? "[reward] the command hangs (rank 1 of 2)" : "no room (rank 1 of 2)"));
        EXPECT_EQ(complete, prompts.size() * 3);
        if (is_idle && world.rank() == 1) EXPECT_EQ(idle, 2u);
      });
}

struct Mode {
  std::string name;
  int size;
};

// Ranks have 38, 39 or 40 rows for 37 tokens. At the high temperature all tokens are about equally likely.
TEST(Sampler, DrawsTheTokensOfOneRankAndNoPaddingOfTheVocabulary) {
  models::ModelShape shape = small_llama();
  shape.hidden = 24, shape.heads = shape.kv_heads = 6, shape.head_dim = 4, shape.ffn = 36;
  std::vector<std::vector<int64_t>> of_one;
  for (const Mode& mode : {Mode{"1d", 1}, Mode{"1d", 2}, Mode{"1d", 3}, Mode{"2d", 4}}) {
    SCOPED_TRACE(concat(mode.name, " ", mode.size));
    run::Config config = run_config({.tensor = mode.size, .precision = "fp64"});
    config.parallel.tensor.mode = mode.name;
    comm::run_ranks(mode.size, [&](comm::World& world) {
      const auto engine = train::initialize(world, config, train::NamedModel{.shape = shape});
      const std::vector<RolloutPrompt> prompts = prompts_of(0, 2);
      std::vector<std::vector<int64_t>> tokens;
      for (const RolloutAnswer& answer : drawn(*engine, 0, prompts)) tokens.push_back(answer.ids);
      SamplerOptions uniform = options();
      uniform.temperature = 1e4;
      std::map<int64_t, int64_t> counts;
      for (const RolloutAnswer& answer : drawn(*engine, uniform, 0, draws_of(prompts, 12))) {
        for (const int64_t id : answer.ids) ++counts[id];
        for (const double one : answer.log_probabilities) EXPECT_NEAR(one, -std::log(kWords), 1e-3);
      }
      EXPECT_EQ(counts.size(), static_cast<size_t>(kWords));
      EXPECT_EQ(counts.rbegin()->first, kWords - 1);
      if (mode.size == 1)
        of_one = tokens;
      else
        EXPECT_EQ(tokens, of_one);
    });
  }
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto engine = train::initialize(world, run_config({}), small_gpt2());
    EXPECT_THAT(test::thrown_message([&] { Sampler(*engine, {}); }), HasSubstr("max_tokens must be at least 1: got 0"));
    EXPECT_THAT(test::thrown_message([&] { Sampler(*engine, {.max_tokens = 1, .temperature = 0}); }),
                HasSubstr("the temperature of draws must be above 0: got 0"));
  });
}

struct CanonicalCase {
  Layout layout;
  Model model;
  std::string recompute = "none";
  int64_t experts = 1;
};

void PrintTo(const CanonicalCase& c, std::ostream* out) { *out << c.layout.name << c.model.name; }

class CanonicalLayouts : public testing::TestWithParam<CanonicalCase> {};

TEST_P(CanonicalLayouts, TrainsWithTheDrawnLogProbabilities) {
  const CanonicalCase& c = GetParam();
  run::Config config = run_config(c.layout);
  config.memory.recompute = c.recompute;
  config.parallel.expert.size = c.experts;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, config.parallel.axes());
    const auto engine = train::initialize(
        mesh, config, train::NamedModel{.shape = c.model.shape, .adapter = c.model.adapter, .panels = panels(true)});
    const std::vector<RolloutPrompt> prompts = prompts_of(mesh.coordinates().index("data"), 2);
    std::set<std::vector<Drawn>> seen;
    for (int64_t round = 0; round < 3; ++round) {
      const std::vector<RolloutAnswer> answers = drawn(*engine, 0, prompts);
      seen.insert(of(answers));
      expect_drawn(*engine, update_of(prompts, answers, round % 2 == 1), concat("round ", round));
    }
    EXPECT_EQ(seen.size(), 3u);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, CanonicalLayouts,
    testing::Values(CanonicalCase{{.name = "One"}, {"Gpt2", gpt2()}},
                    CanonicalCase{{.name = "One"}, {"Llama", llama()}},
                    CanonicalCase{{.name = "Bf16", .precision = "bf16"}, {"Gpt2", gpt2()}, "selective"},
                    CanonicalCase{{.name = "Bf16", .precision = "bf16"}, {"Llama", llama()}, "block"},
                    CanonicalCase{{.name = "One"}, {"Biased", with_positions(test::tiny_biased())}},
                    CanonicalCase{{.name = "Zero3", .zero = 3, .data = 2}, {"Llama", llama()}, "block"},
                    CanonicalCase{{.name = "Tensor", .tensor = 2}, {"Gpt2", gpt2()}},
                    CanonicalCase{{.name = "TensorBf16", .tensor = 2, .precision = "bf16"}, {"Llama", llama()}},
                    CanonicalCase{{.name = "Pipeline", .pipeline = 2}, {"Llama", llama()}},
                    CanonicalCase{{.name = "One"}, with_low_rank(gpt2())},
                    CanonicalCase{{.name = "Bf16", .precision = "bf16"}, with_low_rank(llama())},
                    CanonicalCase{{.name = "Tensor", .tensor = 2}, with_low_rank(llama())},
                    CanonicalCase{{.name = "One"}, with_low_rank(llama(), "nf4")},
                    CanonicalCase{{.name = "Bf16", .tensor = 2, .precision = "bf16"}, with_low_rank(llama(), "int8")},
                    CanonicalCase{{.name = "One"}, with_low_rank(gpt2(), "", "dora"), "block"},
                    CanonicalCase{{.name = "One"}, {"Mixture", mixture()}, "selective"},
                    CanonicalCase{{.name = "Bf16", .precision = "bf16"}, {"Mixture", mixture()}, "block"},
                    CanonicalCase{{.name = "Experts"}, {"Mixture", mixture()}, "none", 2},
                    CanonicalCase{{.name = "Experts"}, with_low_rank(mixture()), "none", 2},
                    CanonicalCase{{.name = "Experts"}, with_low_rank(mixture(), "nf4"), "none", 2},
                    CanonicalCase{{.name = "Zero3", .zero = 3, .data = 2}, with_low_rank(mixture(), "nf4")},
                    CanonicalCase{{.name = "Bf16", .precision = "bf16"}, with_low_rank(mixture(), "int8"), "block"},
                    CanonicalCase{{.name = "Bf16", .precision = "bf16"}, {"BiasedHead", preset("gptj-tiny")}},
                    CanonicalCase{{.name = "TensorPipeline", .tensor = 2, .pipeline = 2},
                                  {"Qwen3", of_family("qwen3")}}),
    [](const auto& info) { return info.param.layout.name + info.param.model.name + std::to_string(info.index); });

// Longer than a part of keys, and than the pages of both passes.
TEST(Canonical, MergesPartsOfLongSequencesInOneOrder) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto engine =
        train::initialize(world, run_config({}), train::NamedModel{.shape = llama(1200), .panels = panels(true)});
    RolloutPrompt prompt{.index = 0};
    for (int64_t i = 0; i < 1100; ++i) prompt.ids.push_back((i * i + 3) % kWords);
    SamplerOptions long_answers = options();
    long_answers.max_tokens = 40;
    const std::vector<RolloutAnswer> answers = drawn(*engine, long_answers, 0, {{&prompt, 0}});
    expect_drawn(*engine, update_of({prompt}, answers, false), "long");
  });
}

}  // namespace
}  // namespace colossal::align::sampler_test
