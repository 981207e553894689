// Perplexity equals the result from logits computed one token at a time, in every layout, window and stride.
#include "colossal/infer/perplexity.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "colossal/base/json.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/run/saved_model.h"
#include "support/generated_text.h"
#include "support/paths.h"
#include "support/thrown_message.h"

namespace colossal::infer::perplexity_test {
namespace {

const std::string kStories = test::source_dir() + "/../shared/data/stories260K-hf";
using Texts = std::vector<std::vector<int64_t>>;

std::vector<int64_t> text_of(int64_t tokens, int64_t factor) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back((factor * i * i + 3 * i + 40) % 120);
  return ids;
}

Likelihood measured(const std::string& folder, const Texts& texts, const LikelihoodOptions& options,
                    const distributed::ParallelConfig& layout = {},
                    const run::Loading& loading = {.tokenizer = "none"}) {
  Likelihood found;
  comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, layout.axes());
    const run::SavedModel saved = run::load_model(folder, mesh, layout, at::kCPU, loading);
    const Likelihood mine = likelihood(*saved.model, texts, options);
    if (world.rank() == world.size() - 1) found = mine;
  });
  return found;
}

/// Returns the negative log-likelihood of token `i` of a text, if the model has read the tokens from `first` on.
double surprise(const std::string& folder, const std::vector<int64_t>& text, int64_t first, int64_t i) {
  double value = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    const distributed::ParallelConfig layout;
    comm::Mesh mesh(world, layout.axes());
    const run::SavedModel saved = run::load_model(folder, mesh, layout, at::kCPU, {.tokenizer = "none"});
    const at::NoGradGuard no_grad;
    const auto cache = saved.model->make_cache(i - first);
    const std::vector<int64_t> read(text.begin() + first, text.begin() + i);
    const at::Tensor logits = saved.model->next_logits(
        nn::step_of(nn::token_batch(at::tensor(read, at::kLong).unsqueeze(0), at::arange(i - first).unsqueeze(0)),
                    {.parts = {nn::Decoding{cache.get()}}}));
    value = -logits.to(at::kDouble).log_softmax(0)[text[static_cast<size_t>(i)]].item<double>();
  });
  return value;
}

TEST(Perplexity, EqualsLogitsOfSingleTokens) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  const Texts texts{text_of(12, 7), text_of(1, 5), text_of(5, 11)};
  // Windows have 5 tokens, and each starts 3 tokens after the one before.
  double want = 0;
  for (int64_t i = 1; i < 12; ++i) want += surprise(folder / "hf", texts[0], i <= 5 ? 0 : (i - 3) / 3 * 3, i);
  for (int64_t i = 1; i < 5; ++i) want += surprise(folder / "hf", texts[2], 0, i);
  const Likelihood found = measured(folder / "hf", texts, {.window = 5, .stride = 3});
  EXPECT_EQ(found.tokens, 15);
  EXPECT_NEAR(found.sum, want, 1e-4 * want);
  EXPECT_NEAR(found.perplexity(), std::exp(want / 15), 1e-2 * std::exp(want / 15));
  EXPECT_NEAR(found.bits_per_byte(30), want / 30 / std::log(2.0), 1e-4 * want);
}

TEST(Perplexity, EqualsOneProcessInEveryLayout) {
  test::TemporaryFolder folder;
  test::write_model(folder, "gpt2-tiny");
  const Texts texts{text_of(50, 7), text_of(9, 11)};  // one text is longer than the 32 positions
  const double want = measured(folder / "hf", texts, {}).sum;
  std::vector<distributed::ParallelConfig> layouts(4);
  layouts[0].tensor.size = 2;
  layouts[1].pipeline.size = 2;
  layouts[2].tensor.size = layouts[2].pipeline.size = 2;
  layouts[3].tensor = {.size = 4, .mode = "2d"};
  for (const auto& layout : layouts)
    EXPECT_NEAR(measured(folder / "hf", texts, {}, layout).sum, want, 1e-5 * want)
        << layout.tensor.mode << layout.tensor.size << layout.pipeline.size;
  run::Loading packed{.tokenizer = "none", .packing = nn::WeightPacking{}};
  EXPECT_NEAR(measured(folder / "hf", texts, {}, {}, packed).sum, want, 1e-4 * want);
}

TEST(Perplexity, RefusesInvalidTextsAndWindows) {
  test::TemporaryFolder folder;
  test::write_model(folder, "gpt2-tiny");
  const auto refusal = [&](const Texts& texts, const LikelihoodOptions& options) {
    return test::thrown_message([&] { measured(folder / "hf", texts, options); });
  };
  EXPECT_THAT(refusal({text_of(9, 7)}, {.window = 33}), testing::HasSubstr("1 to 32 tokens"));
  EXPECT_THAT(refusal({text_of(9, 7)}, {.window = 8, .stride = 9}), testing::HasSubstr("1 to 8 tokens, the window"));
  EXPECT_THAT(refusal({{1}, {}}, {}), testing::HasSubstr("must have at least two tokens"));
  EXPECT_THAT(refusal({{1, 1 << 20}}, {}), testing::HasSubstr("is this the model's tokenizer?"));
}

TEST(Perplexity, EqualsTheReferenceOfARealModel) {
  if (!std::filesystem::exists(kStories)) GTEST_SKIP() << "needs " << kStories;
  std::ifstream file(kStories + "/reference.json");
  const nlohmann::json reference = nlohmann::json::parse(file);
  const auto& of = reference["cases"][0];
  std::vector<int64_t> ids = of["prompt_ids"];
  const at::Tensor logits = at::tensor(of["logits_last_prompt_position"].get<std::vector<double>>(), at::kDouble);
  const int64_t next = of["greedy_ids"][0];
  const double before = measured(kStories, {ids}, {}).sum;
  ids.push_back(next);
  EXPECT_NEAR(measured(kStories, {ids}, {}).sum - before, -logits.log_softmax(0)[next].item<double>(), 1e-4);
}

}  // namespace
}  // namespace colossal::infer::perplexity_test
