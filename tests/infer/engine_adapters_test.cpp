// Requests of one engine with different adapters: each gets the bits that it gets in an engine that has its adapter
// alone, and what the model gives into whose weights the adapter is merged.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/peft/folder.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/embeddings/pooling.h"
#include "colossal/infer/engine.h"
#include "colossal/models/registry.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/saved_model.h"
#include "infer/engine_answers.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::engine_adapters_test {
namespace {

using testing::HasSubstr;

/// What a request got: its tokens with their log-probabilities, those of its prompt, and the cached tokens found.
struct Answer {
  std::vector<int64_t> tokens;
  std::vector<double> scores;
  int64_t found = 0;
  bool operator==(const Answer& other) const { return tokens == other.tokens && scores == other.scores; }
};

std::vector<Answer> answers_in(infer::Engine& engine, const std::vector<Request>& requests) {
  std::vector<Answer> answers(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    engine.add(requests[i], [&own = answers[i]](const Event& event) {
      for (const LogProbabilities& score : event.prompt_log_probabilities) own.scores.push_back(score.own);
      if (event.log_probabilities) own.scores.push_back(event.log_probabilities->own);
      if (event.is_answer()) own.tokens.push_back(event.token);
      own.found = event.found;
    });
    engine.step();  // others arrive while it runs
  }
  while (engine.has_work()) engine.step();
  return answers;
}

class AdapterFolders : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    test::write_model(folder, GetParam());
    write_adapters();
  }
  virtual void write_adapters() {
    const bool is_gpt2 = GetParam() == "gpt2-tiny";
    write("poet", {.rank = 3, .alpha = 6}, {is_gpt2 ? "c_attn" : "q_proj"});
    write("coder", {.rank = 9, .alpha = 9, .root_scale = true}, {"all-linear"});
    write("cook", {.rank = 3, .alpha = 3}, {is_gpt2 ? "c_attn" : "q_proj"});
  }

  /// Writes a folder of peft with adapters that change the answers.
  void write(const std::string& name, checkpoint::PeftConfig config, const std::vector<std::string>& targets) {
    const run::AdapterModules modules(shape());
    std::map<std::string, checkpoint::PeftLayer> layers;
    auto generator = at::detail::createCPUGenerator(std::hash<std::string>()(name));
    for (const size_t index : modules.selected("targets", targets, {})) {
      const run::LinearModule& module = modules.linear()[index];
      std::vector<std::string>& names = module.is_stack() ? config.parameters : config.targets;
      if (names.empty() || names.back() != module.name) names.push_back(module.name);
      checkpoint::PeftLayer layer{.rank = config.rank, .scale = config.scale_of(module.name)};
      std::vector<int64_t> a{config.rank, module.in}, b{module.part.count, config.rank};
      if (module.is_stack()) a.insert(a.begin(), module.experts), b.insert(b.begin(), module.experts);
      layer.a = at::randn(a, generator) / 8;
      layer.b = at::randn(b, generator) / 2;
      if (config.magnitudes) layer.magnitude = at::ones({module.part.count});
      layers[module.name] = std::move(layer);
    }
    std::filesystem::create_directory(folder / name);
    checkpoint::PeftFolder(config, std::move(layers), {}).write(folder / name);
  }

  models::ModelShape shape() const { return models::built_in().shape_of(checkpoint::read_config(folder / "hf")); }

  static run::AdapterChoice choice(const std::string& name, const std::string& path) {
    run::AdapterChoice chosen;
    chosen.name = name, chosen.folder = path;
    return chosen;
  }
  run::Loading loading(const std::vector<std::string>& names, std::optional<at::ScalarType> dtype = {},
                       int64_t bits = 0) const {
    run::Loading loading{.tokenizer = "none", .dtype = dtype, .packing = nn::WeightPacking{.bits = bits, .group = 32}};
    for (const std::string& name : names) loading.named_adapters.push_back(choice(name, folder / name));
    return loading;
  }

  void with_model(const run::Loading& loading, const std::function<void(const run::SavedModel&, bool is_first)>& work,
                  const distributed::ParallelConfig& layout = {}) const {
    comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
      comm::Mesh mesh(world, layout.axes());
      work(run::load_model(folder / "hf", mesh, layout, at::kCPU, loading), world.rank() == 0);
    });
  }

  /// Prompts of various lengths, each with the base and with all adapters.
  std::vector<Request> requests() const {
    std::vector<Request> all;
    for (int64_t i = 0; i < 3; ++i)
      for (const std::string name : {"", "poet", "coder", "cook"}) {
        Request request{.options = {.max_tokens = 6}, .adapter = name};
        for (int64_t t = 0; t < 5 + 8 * i; ++t) request.prompt.push_back(40 + (t * (i + 3)) % 60);
        request.options.logprobs = 0;
        if (i == 1) request.options.prompt_logprobs = 0;
        all.push_back(std::move(request));
      }
    return all;
  }

  /// Returns the answers of engines that have one adapter each, and those of the base from a model without any.
  std::vector<Answer> alone(const std::vector<Request>& requests, std::optional<at::ScalarType> dtype, int64_t bits,
                            const distributed::ParallelConfig& layout = {}) const {
    std::vector<Answer> answers(requests.size());
    for (const std::string name : {"", "poet", "coder", "cook"})
      with_model(
          loading(name.empty() ? std::vector<std::string>{} : std::vector<std::string>{name}, dtype, bits),
          [&](const run::SavedModel& saved, bool is_first) {
            for (size_t i = 0; i < requests.size(); ++i) {
              if (requests[i].adapter != name) continue;
              infer::Engine engine(*saved.model, {.cache_bytes = 1 << 22, .adapters = saved.adapters});
              const std::vector<Answer> got = answers_in(engine, {requests[i]});
              if (is_first) answers[i] = got.front();
            }
          },
          layout);
    return answers;
  }

  test::TemporaryFolder folder;
};

class EngineAdapters : public AdapterFolders {};

const std::vector<std::string> kNames{"poet", "coder", "cook"};

int64_t bytes_of_blocks(const run::SavedModel& saved, int64_t blocks, int64_t item) {
  const models::ModelShape& s = saved.model->decoding_model().shape;
  return blocks * 16 * s.layers * s.kv_heads * 2 * s.head_dim * item;
}

TEST_P(EngineAdapters, EqualEachAdapterAlone) {
  const std::vector<Request> all = requests();
  for (const auto& [dtype, bits] :
       std::vector<std::pair<at::ScalarType, int64_t>>{{at::kFloat, 0}, {at::kBFloat16, 0}, {at::kFloat, 4}}) {
    const std::vector<Answer> want = alone(all, dtype, bits);
    EXPECT_NE(want[8].tokens, want[9].tokens);
    EXPECT_NE(want[9].tokens, want[10].tokens);
    EXPECT_NE(want[9].tokens, want[11].tokens);
    with_model(loading(kNames, dtype, bits), [&, type = dtype](const run::SavedModel& saved, bool) {
      int64_t preempted = 0, drafted = 0;
      for (const int64_t step_tokens : {3, 512})
        for (const int64_t blocks : {4, 60})
          for (const int64_t drafts : {0, 3}) {
            infer::Engine engine(*saved.model, {.cache_bytes = bytes_of_blocks(
                                                    saved, blocks, static_cast<int64_t>(c10::elementSize(type))),
                                                .block_tokens = 16,
                                                .step_tokens = step_tokens,
                                                .draft_tokens = drafts,
                                                .adapters = saved.adapters});
            ASSERT_EQ(engine.blocks(), blocks);
            EXPECT_TRUE(answers_in(engine, all) == want) << step_tokens << " " << blocks << " " << drafts;
            preempted += engine.counts().preempted;
            drafted += engine.draft_counts().proposed;
          }
      EXPECT_GT(preempted, 0);
      EXPECT_GT(drafted, 0);
    });
  }
}

TEST_P(EngineAdapters, EqualMergedWeights) {
  const std::vector<Request> all = requests();
  with_model(loading(kNames, at::kDouble), [&](const run::SavedModel& saved, bool) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 24, .adapters = saved.adapters});
    infer::Engine lone(*saved.model, {.adapters = saved.adapters, .alone = true});
    const std::vector<Answer> got = answers_in(engine, all);
    for (size_t i = 0; i < all.size(); ++i) {
      run::Loading merged = loading({}, at::kDouble);
      if (!all[i].adapter.empty()) merged.adapter = choice(all[i].adapter, folder / all[i].adapter);
      with_model(merged, [&](const run::SavedModel& one, bool) {
        Request request = all[i];
        request.adapter.clear();
        infer::Engine own(*one.model, {.cache_bytes = 1 << 24});
        const Answer want = answers_in(own, {request}).front();
        EXPECT_EQ(got[i].tokens, want.tokens) << i;
        ASSERT_EQ(got[i].scores.size(), want.scores.size());
        for (size_t s = 0; s < want.scores.size(); ++s) EXPECT_NEAR(got[i].scores[s], want.scores[s], 1e-10) << i;
        if (all[i].options.prompt_logprobs >= 0) return;
        EXPECT_EQ(answers_in(lone, {all[i]}).front().tokens, want.tokens) << i;
      });
    }
  });
}

TEST_P(EngineAdapters, EqualEachAdapterAloneInEveryLayout) {
  std::vector<Request> all = requests();
  all.erase(all.begin(), all.begin() + 8);
  std::vector<distributed::ParallelConfig> layouts(3);
  layouts[0].tensor.size = 2;
  layouts[1].pipeline.size = 2;
  layouts[2].sequence.size = 2;
  const std::vector<Answer> of_one = alone(all, at::kFloat, 0);
  for (const distributed::ParallelConfig& layout : layouts) {
    const std::vector<Answer> want = alone(all, at::kFloat, 0, layout);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(want[i].tokens, of_one[i].tokens);
    with_model(
        loading(kNames, at::kFloat),
        [&](const run::SavedModel& saved, bool) {
          infer::Engine engine(*saved.model, {.cache_bytes = 1 << 22, .step_tokens = 40, .adapters = saved.adapters});
          EXPECT_TRUE(answers_in(engine, all) == want) << layout.tensor.size << layout.pipeline.size;
        },
        layout);
  }
}

TEST_P(EngineAdapters, FindNoPrefixOfAnotherAdapter) {
  with_model(loading(kNames), [&](const run::SavedModel& saved, bool) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 22, .block_tokens = 16, .adapters = saved.adapters});
    Request request = requests().back();
    ASSERT_GT(request.prompt.size(), 16U);
    std::vector<Answer> first;
    for (const std::string name : {"", "poet", "coder"}) {
      request.adapter = name;
      first.push_back(answers_in(engine, {request}).front());
      EXPECT_EQ(first.back().found, 0) << name;
    }
    for (const std::string name : {"poet", "", "coder"}) {
      request.adapter = name;
      const Answer again = answers_in(engine, {request}).front();
      EXPECT_EQ(again.found, 16) << name;
      EXPECT_TRUE(again == first[name.empty() ? 0 : name == "poet" ? 1 : 2]) << name;
    }
    request.cache_key = "0 ";  // no key of a client is one of an adapter
    request.adapter.clear();
    EXPECT_EQ(answers_in(engine, {request}).front().found, 0);
  });
}

TEST_P(EngineAdapters, GiveVectorsOfPrompts) {
  with_model(loading(kNames), [&](const run::SavedModel& saved, bool) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 22, .adapters = saved.adapters});
    std::vector<std::vector<float>> vectors(2);
    for (size_t i = 0; i < 2; ++i)
      engine.add({.prompt = {60, 61, 62}, .adapter = i == 0 ? "" : "poet", .pooling = Pooling::Mean},
                 [&vectors, i](const Event& event) { vectors[i] = event.vector; });
    while (engine.has_work()) engine.step();
    EXPECT_EQ(vectors[0].size(), vectors[1].size());
    EXPECT_NE(vectors[0], vectors[1]);
  });
}

TEST_P(EngineAdapters, RefuseWhatCannotBeChosen) {
  with_model(loading({"poet"}), [&](const run::SavedModel& saved, bool) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 22, .adapters = saved.adapters});
    EXPECT_THAT(test::thrown_message([&] { engine.add({.prompt = {1}, .adapter = "poem"}); }),
                HasSubstr("got poem, did you mean `poet`?; there are poet, and the base without a name"));
    EXPECT_THAT(
        test::thrown_message([&] { infer::Engine(*saved.model, {.cache_bytes = 1 << 22, .adapters = {"a", "a"}}); }),
        HasSubstr("different names"));
    infer::Engine none(*saved.model, {.cache_bytes = 1 << 22});
    EXPECT_THAT(test::thrown_message([&] { none.add({.prompt = {1}, .adapter = "poet"}); }),
                HasSubstr("there are none, so leave it out"));
  });
  const auto refused = [&](const run::Loading& loading, const distributed::ParallelConfig& layout = {}) {
    return test::thrown_message([&] { with_model(loading, [](const run::SavedModel&, bool) {}, layout); });
  };
  EXPECT_THAT(refused(loading({"poet", "poet"})), HasSubstr("got poet twice"));
  write("dora", {.rank = 3, .magnitudes = true}, {"all-linear"});
  EXPECT_THAT(refused(loading({"dora"})), HasSubstr("must not have magnitudes (DoRA)"));
  run::Loading both = loading({"poet"});
  both.adapter = choice("coder", folder / "coder");
  EXPECT_THAT(refused(both), HasSubstr("merged or chosen by requests"));
  distributed::ParallelConfig grid;
  grid.tensor = {.size = 4, .mode = "2d"};
  EXPECT_THAT(refused(loading({"poet"}), grid), HasSubstr("set tensor.mode = 1d"));
}

/// Models whose layers read other rows than the tokens of a step, or latents.
class OtherEngineAdapters : public AdapterFolders {
 protected:
  void write_adapters() override {
    const run::AdapterModules modules(shape());
    for (const run::LinearModule& module : modules.linear())
      if (module.name.find("kv_b_proj") == std::string::npos && !module.is_stack()) targets_.push_back(module.name);
    ASSERT_GT(targets_.size(), 10U);
    write("poet", {.rank = 3, .alpha = 6}, targets_);
  }
  std::vector<std::string> targets_;
};

TEST_P(OtherEngineAdapters, EqualMergedWeights) {
  const bool is_alone = shape().task().answers();
  const auto ask = [&](const run::SavedModel& saved, const std::string& name) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 24, .adapters = saved.adapters, .alone = is_alone});
    std::vector<Request> both(2);
    for (Request& request : both) request = {.prompt = {40, 41, 42, 43}, .options = {.max_tokens = 6}};
    for (Request& request : both) request.options.logprobs = 0;
    both[1].adapter = name;
    return answers_in(engine, both);
  };
  std::vector<Answer> got, base, merged;
  with_model(loading({"poet"}, at::kDouble), [&](const auto& saved, bool) { got = ask(saved, "poet"); });
  with_model(loading({}, at::kDouble), [&](const auto& saved, bool) { base = ask(saved, ""); });
  run::Loading loading_merged = loading({}, at::kDouble);
  loading_merged.adapter = choice("poet", folder / "poet");
  with_model(loading_merged, [&](const auto& saved, bool) { merged = ask(saved, ""); });
  EXPECT_TRUE(got[0] == base[0]);
  EXPECT_EQ(got[1].tokens, merged[1].tokens);
  ASSERT_EQ(got[1].scores.size(), merged[1].scores.size());
  for (size_t i = 0; i < merged[1].scores.size(); ++i) EXPECT_NEAR(got[1].scores[i], merged[1].scores[i], 1e-10);
  EXPECT_NE(merged[1].scores, base[1].scores);
  if (GetParam() != "deepseek-tiny") return;
  write("all", {.rank = 3, .alpha = 6}, {"all-linear"});
  EXPECT_THAT(test::thrown_message([&] { with_model(loading({"all"}), [](const auto&, bool) {}); }),
              HasSubstr("leave the keys and values of latents as they are: got blocks.0.attention.kv_up.weight"));
  write("experts", {.rank = 3, .alpha = 6}, {"experts"});
  EXPECT_THAT(test::thrown_message([&] { with_model(loading({"experts"}), [](const auto&, bool) {}); }),
              HasSubstr("must not have adapters of experts"));
}

INSTANTIATE_TEST_SUITE_P(Models, OtherEngineAdapters, testing::Values("deepseek-tiny", "t5-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

INSTANTIATE_TEST_SUITE_P(Models, EngineAdapters, testing::Values("gpt2-tiny", "llama-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

}  // namespace
}  // namespace colossal::infer::engine_adapters_test
