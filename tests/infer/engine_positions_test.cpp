// Completions of models whose cache keeps a window, or whose positions depend on the length of a sequence.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/embeddings/embed.h"
#include "colossal/infer/generate.h"
#include "colossal/run/saved_model.h"
#include "infer/engine_answers.h"
#include "support/generated_text.h"
#include "support/ranks_values.h"

namespace colossal::infer::engine_test {
namespace {

TEST(EngineWindow, KeepsOnlyTheWindow) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  nlohmann::json config = nlohmann::json::parse(read_file(folder / "hf/config.json", 1 << 20));
  config["model_type"] = "mistral", config["architectures"] = {"MistralForCausalLM"};
  config["sliding_window"] = 20, config["max_position_embeddings"] = 400;
  config.erase("attention_bias"), config.erase("mlp_bias");
  folder.write("hf/config.json", config.dump());
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    const run::SavedModel saved =
        run::load_model(folder / "hf", mesh, {}, at::kCPU, {.tokenizer = "none", .packing = nn::WeightPacking{}});
    std::vector<Request> requests;
    std::vector<Tokens> want;
    for (int64_t i = 0; i < 5; ++i) {
      Request request{.prompt = Tokens(static_cast<size_t>(1 + 37 * i), 65), .options = {.max_tokens = 120 + 20 * i}};
      request.prompt.back() = 66 + i;
      request.options.sampling = {.temperature = 1, .seed = i};
      want.push_back(generate(*saved.model, request));
      requests.push_back(std::move(request));
    }
    for (const int64_t draft_tokens : {0, 3}) {
      const infer::Engine whole(*saved.model, {.cache_bytes = 1 << 22, .block_tokens = 16});
      const int64_t block = (int64_t{1} << 22) / whole.blocks();
      // The cache has room for 96 tokens, and the longest sequence has 349.
      infer::Engine engine(
          *saved.model,
          {.cache_bytes = 6 * block, .block_tokens = 16, .step_tokens = 24, .draft_tokens = draft_tokens});
      EXPECT_EQ(answers_of(engine, requests), want);
      EXPECT_GT(engine.counts().preempted, 0);
      EXPECT_THROW(infer::Engine(*saved.model, {.cache_bytes = 6 * block, .block_tokens = 16, .step_tokens = 80})
                       .add({.prompt = Tokens(97, 65)}),
                   Error);
    }
  });
}

/// Changes the rotary positions of the folder "hf", whose model has 32 positions.
void rotate(const test::TemporaryFolder& folder, const nlohmann::json& keys) {
  nlohmann::json config = nlohmann::json::parse(read_file(folder / "hf/config.json", 1 << 20));
  config.update(keys);
  folder.write("hf/config.json", config.dump());
}

/// Factors for the 8 pairs of a head.
std::vector<double> factors(double step) {
  std::vector<double> all;
  for (int i = 0; i < 8; ++i) all.push_back(1 + step * i);
  return all;
}

nlohmann::json long_rope(const std::vector<double>& near, const std::vector<double>& far) {
  return {{"max_position_embeddings", 128},
          {"rope_scaling",
           {{"rope_type", "longrope"},
            {"factor", 4.0},
            {"original_max_position_embeddings", 32},
            {"short_factor", near},
            {"long_factor", far}}}};
}

Request drawn(int64_t length, int64_t max_tokens) {
  Request request{.prompt = Tokens(static_cast<size_t>(length), 65), .options = {.max_tokens = max_tokens}};
  for (int64_t i = 0; i < length; ++i) request.prompt[static_cast<size_t>(i)] += i * i % 7;
  request.options.sampling = {.temperature = 1, .seed = length};
  return request;
}

std::vector<Tokens> alone(const std::string& folder, const std::vector<Request>& requests) {
  std::vector<Tokens> answers;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    const run::SavedModel saved =
        run::load_model(folder, mesh, {}, at::kCPU, {.tokenizer = "none", .packing = nn::WeightPacking{}});
    for (const Request& request : requests) answers.push_back(generate(*saved.model, request));
  });
  return answers;
}

/// Checks that an engine gives these answers for chunks, draft tokens, few blocks and cached prefixes.
void expect_answers(const std::string& folder, const std::vector<Request>& requests, const std::vector<Tokens>& want) {
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    const run::SavedModel saved =
        run::load_model(folder, mesh, {}, at::kCPU, {.tokenizer = "none", .packing = nn::WeightPacking{}});
    const infer::Engine whole(*saved.model, {.cache_bytes = 1 << 22, .block_tokens = 16});
    const int64_t block = (int64_t{1} << 22) / whole.blocks();
    for (const int64_t draft_tokens : {0, 3}) {
      infer::Engine engine(
          *saved.model,
          {.cache_bytes = 8 * block, .block_tokens = 16, .step_tokens = 24, .draft_tokens = draft_tokens});
      EXPECT_EQ(engine.max_length(), 128);
      EXPECT_EQ(answers_of(engine, requests), want) << draft_tokens;
      EXPECT_GT(engine.counts().preempted, 0) << draft_tokens;
      EXPECT_EQ(answers_of(engine, requests), want) << "from cached prefixes";
    }
  });
}

// Before, a text ended at the original positions. Short and long texts share steps here.
TEST(EngineLongRope, ComputesATextByTheFactorsOfItsReach) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  const std::vector<double> near = factors(0.25), far = factors(2);
  const std::vector<Request> within{drawn(20, 13), drawn(30, 3), drawn(32, 1)},  // they read at most 32 tokens
      beyond{drawn(33, 20), drawn(90, 30), drawn(128, 1)},                       // as generate() computes them
      across{drawn(20, 14), drawn(30, 60), drawn(32, 2)};                        // by the long factors from the start
  rotate(folder, long_rope(near, far));
  std::vector<Request> all = within;
  all.insert(all.end(), beyond.begin(), beyond.end());
  std::vector<Tokens> want = alone(folder / "hf", all);
  rotate(folder, long_rope(far, far));
  for (Tokens& tokens : alone(folder / "hf", across)) want.push_back(std::move(tokens));
  all.insert(all.end(), across.begin(), across.end());
  rotate(folder, long_rope(near, far));
  // The test would prove nothing if both factors gave the same.
  EXPECT_NE(alone(folder / "hf", {drawn(20, 14)}), (std::vector<Tokens>{want[6]}));
  expect_answers(folder / "hf", all, want);
}

// A long text in the same row must not change the factors of a short one.
TEST(EmbedderLongRope, ComputesEachTextByItsOwnFactors) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  const Tokens near = drawn(20, 0).prompt, far = drawn(60, 0).prompt;
  const auto vectors = [&](const nlohmann::json& keys, const std::vector<Tokens>& texts) {
    rotate(folder, keys);
    at::Tensor made;
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::SavedModel saved = run::load_model(folder / "hf", mesh, {}, at::kCPU, {.tokenizer = "none"});
      made = Embedder(*saved.model, {}).embed(texts);
    });
    return made;
  };
  const nlohmann::json keys = long_rope(factors(0.25), factors(2));
  const at::Tensor both = vectors(keys, {near, far}), first = vectors(keys, {near}), second = vectors(keys, {far}),
                   other = vectors(long_rope(factors(2), factors(2)), {near});
  // Products of other sizes round otherwise; other factors give other vectors.
  const auto off = [](const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); };
  const double rounding = 1e-4 * both.abs().max().item<double>();
  EXPECT_LT(off(both[0], first[0]), rounding);
  EXPECT_LT(off(both[1], second[0]), rounding);
  EXPECT_GT(off(other[0], first[0]), 100 * rounding);
}

TEST(EngineDynamicPositions, ComputesATextByTheFrequenciesOfItsReach) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  const nlohmann::json plain = {{"max_position_embeddings", 128}, {"rope_theta", 10000.0}, {"rope_scaling", nullptr}};
  rotate(folder, plain);
  std::vector<Request> requests{drawn(20, 13)};
  std::vector<Tokens> want = alone(folder / "hf", requests);
  for (const auto& [length, max_tokens] : {std::pair<int64_t, int64_t>{20, 40}, {50, 11}, {100, 1}}) {
    const double times = static_cast<double>(length + max_tokens - 1) / 32;  // 16 features of a head rotate
    rotate(folder, {{"rope_theta", 10000.0 * std::pow(4 * times - 3, 16.0 / 14)}});
    requests.push_back(drawn(length, max_tokens));
    want.push_back(alone(folder / "hf", {requests.back()}).front());
  }
  rotate(folder, {{"max_position_embeddings", 32},
                  {"rope_theta", 10000.0},
                  {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}}});
  expect_answers(folder / "hf", requests, want);
}

}  // namespace
}  // namespace colossal::infer::engine_test
