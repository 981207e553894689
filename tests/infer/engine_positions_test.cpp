// Completions of models whose cache keeps a window, or whose positions depend on the length of a sequence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/comm/run_ranks.h"
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

// Frequencies of type dynamic depend on the longest sequence of a step. A sequence beyond the even positions would
// change the others too.
TEST(EngineDynamicPositions, EndsBeforeRequestsDependOnOthers) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  nlohmann::json config = nlohmann::json::parse(read_file(folder / "hf/config.json", 1 << 20));
  const int64_t even = config["max_position_embeddings"];
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  folder.write("hf/config.json", config.dump());
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    const run::SavedModel saved = run::load_model(folder / "hf", mesh, {}, at::kCPU, {.tokenizer = "none"});
    ASSERT_EQ(saved.model->decoding_model().shape.positions, 2 * even);
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 22, .block_tokens = 16});
    EXPECT_THAT(test::thrown_message([&] { engine.add({.prompt = Tokens(even + 1, 65)}); }),
                testing::HasSubstr("depend on the length of a text; run it alone"));
    const Request request{.prompt = {65, 66, 67}, .options = {.max_tokens = 3 * even}};
    int64_t made = 0;
    FinishReason finish_reason = FinishReason::None;
    engine.add(request, [&](const Event& event) { ++made, finish_reason = event.finish_reason; });
    while (engine.has_work()) engine.step();
    EXPECT_EQ(made, even - 3 + 1);
    EXPECT_EQ(finish_reason, FinishReason::AtPositions);
    EXPECT_EQ(generate(*saved.model, request).size(), static_cast<size_t>(2 * even - 2));
  });
}

}  // namespace
}  // namespace colossal::infer::engine_test
