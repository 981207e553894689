// Embedding vectors: the formulas of poolings, the independence of texts in one row, layouts, and refused inputs.
#include "colossal/infer/embeddings/embed.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/engine.h"
#include "colossal/run/saved_model.h"
#include "support/generated_text.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::infer::embed_test {
namespace {

using ::testing::HasSubstr;
using Texts = std::vector<std::vector<int64_t>>;

const Texts kTexts{{5, 6, 7}, {8}, {9, 10, 11, 12, 13}, {5, 6, 7}};

at::Tensor vectors_of(const std::string& folder, const EmbedOptions& options, const Texts& texts = kTexts,
                      const distributed::ParallelConfig& layout = {}) {
  at::Tensor made;
  comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, layout.axes());
    const run::SavedModel saved =
        run::load_model(folder, mesh, layout, at::kCPU,
                        {.tokenizer = "bytes", .headless = true, .pooler = options.pooling == Pooling::Pooler});
    const at::Tensor vectors = Embedder(*saved.model, options).embed(texts);
    if (world.rank() == 0) made = vectors;
  });
  return made;
}

TEST(Pooling, FollowsItsFormula) {
  const at::Tensor hidden = at::tensor({1., 2., 3., -4., 5., 6.}).view({1, 3, 2});
  const auto of = [&](Pooling pooling) { return pooled(hidden, {2, 1}, pooling); };
  EXPECT_TRUE(at::equal(of(Pooling::Cls), at::tensor({1., 2., 5., 6.}).view({2, 2})));
  EXPECT_TRUE(at::equal(of(Pooling::Mean), at::tensor({2., -1., 5., 6.}).view({2, 2})));
  EXPECT_TRUE(at::equal(of(Pooling::Max), at::tensor({3., 2., 5., 6.}).view({2, 2})));
  EXPECT_TRUE(at::equal(of(Pooling::Last), at::tensor({3., -4., 5., 6.}).view({2, 2})));
  EXPECT_EQ(pooled(hidden.to(at::kBFloat16), {3}, Pooling::Mean).scalar_type(), at::kFloat);
}

TEST(Pooling, EqualsThatOfChunks) {
  const at::Tensor hidden = at::tensor({1., 2., 3., -4., 5., 6., -7., 1.}).view({1, 4, 2});
  for (const Pooling pooling : {Pooling::Cls, Pooling::Mean, Pooling::Max, Pooling::Last})
    for (const bool normalizes : {false, true}) {
      TextPool pool(pooling, normalizes);
      for (const auto& [first, end] : {std::pair(0, 1), {1, 1}, {1, 3}, {3, 4}})
        pool.add(hidden[0].slice(0, first, end));
      const at::Tensor whole = pooled(hidden, {4}, pooling);
      EXPECT_TRUE(at::equal(at::tensor(pool.vector()), (normalizes ? normalized(whole) : whole)[0].to(at::kFloat)))
          << static_cast<int>(pooling) << normalizes;
    }
}

TEST(Pooling, HasNames) {
  for (const std::string& name : pooling_names()) EXPECT_NO_THROW(pooling_of(name));
  EXPECT_EQ(pooling_of("pooler"), Pooling::Pooler);
  EXPECT_THAT(test::thrown_message([] { pooling_of("sum"); }), HasSubstr("pooler: got sum"));
}

class EmbedderOf : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { test::write_model(folder, GetParam()); }
  test::TemporaryFolder folder;
};

TEST_P(EmbedderOf, ComputesVectorsIndependentlyOfOtherTexts) {
  const at::Tensor together = vectors_of(folder / "run", {.pooling = Pooling::Mean});
  ASSERT_EQ(together.sizes(), at::IntArrayRef({4, 64}));
  EXPECT_FALSE(at::allclose(together[0], together[1]));
  for (size_t i = 0; i < kTexts.size(); ++i)
    EXPECT_TRUE(at::allclose(vectors_of(folder / "hf", {.pooling = Pooling::Mean}, {kTexts[i]})[0],
                             together[static_cast<int64_t>(i)], 1e-4, 1e-4))
        << i;
  for (const int64_t at_once : {1, 4, 6})
    EXPECT_TRUE(at::allclose(vectors_of(folder / "run", {.pooling = Pooling::Mean, .tokens_at_once = at_once}),
                             together, 1e-4, 1e-4))
        << at_once;
  EXPECT_EQ(vectors_of(folder / "run", {}, {}).sizes(), at::IntArrayRef({0, 64}));
}

TEST_P(EmbedderOf, EqualsOneProcessInEveryLayout) {
  const EmbedOptions options{.pooling = Pooling::Last, .normalize = true};
  const at::Tensor want = vectors_of(folder / "run", options);
  EXPECT_TRUE(at::allclose(want.norm(2, {1}), at::ones({4}), 1e-5));
  std::vector<distributed::ParallelConfig> layouts(3);
  layouts[0].tensor.size = 2;
  layouts[1].pipeline.size = 2;
  layouts[2].tensor.size = layouts[2].pipeline.size = 2;
  if (GetParam() == "mixtral-tiny") {
    for (auto& layout : layouts) layout.expert.size = 2;
    layouts.emplace_back().expert.size = 4;
  }
  for (const auto& layout : layouts)
    EXPECT_TRUE(at::allclose(vectors_of(folder / "run", options, kTexts, layout), want, 1e-4, 1e-4));
}

TEST_P(EmbedderOf, RefusesInvalidTexts) {
  const auto message = [&](const Texts& texts) {
    return test::thrown_message([&] { vectors_of(folder / "hf", {}, texts); });
  };
  EXPECT_THAT(message({{1}, {}}), HasSubstr("a text must have at least one token"));
  EXPECT_THAT(message({std::vector<int64_t>(33, 1)}), HasSubstr("the model's 32 positions: got 33 tokens"));
  EXPECT_THAT(message({{1 << 20}}), HasSubstr("vocabulary of 25"));
  EXPECT_THAT(message({{-1}}), HasSubstr("got -1; is this the model's tokenizer?"));
  EXPECT_THAT(test::thrown_message([&] { vectors_of(folder / "run", {.pooling = Pooling::Pooler}); }),
              HasSubstr("pooling `pooler` needs a BERT that has one: got "));
}

INSTANTIATE_TEST_SUITE_P(Models, EmbedderOf, testing::Values("gpt2-tiny", "bert-tiny", "mixtral-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

/// Bounds the difference of two vectors of length 1 from the same products. LibTorch's kernels may add in another order
/// if memory has another alignment, so a product of n terms may differ by n * epsilon of its size. A layer has seven
/// products, one after another, and norms keep the size.
double rounding_bound(const models::ModelShape& shape) {
  constexpr int64_t kProducts = 7;
  const int64_t terms = std::max(shape.hidden, shape.ffn);
  return static_cast<double>(shape.layers * kProducts * terms) * std::numeric_limits<float>::epsilon();
}

// The same weights generate and embed in turn. Both give what they give alone.
TEST(EmbedderBesideAnEngine, EmbedsBetweenStepsOfGeneration) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, distributed::ParallelConfig{}.axes());
    const run::SavedModel saved =
        run::load_model(folder / "hf", mesh, {}, at::kCPU, {.tokenizer = "none", .packing = nn::WeightPacking{}});
    const Request request{.prompt = {70, 71, 72}, .options = {.max_tokens = 9}};
    const auto generated = [&](const std::function<void()>& between) {
      Engine engine(*saved.model, {.cache_bytes = 1 << 20, .block_tokens = 16});
      std::vector<int64_t> tokens;
      engine.add(request, [&](const Event& event) { tokens.push_back(event.token); });
      for (; engine.has_work(); between()) engine.step();
      return tokens;
    };
    Embedder embedder(*saved.model, {.normalize = true, .tokens_at_once = 5});
    const at::Tensor want = embedder.embed(kTexts);
    const double bound = rounding_bound(saved.model->model().shape);
    const std::vector<int64_t> alone = generated([] {});
    EXPECT_EQ(alone.size(), 9U);
    size_t next = 0, passes = 0;
    const std::vector<int64_t> beside = generated([&] {
      const at::Tensor row = embedder.embed_row(kTexts, next);
      const int64_t begin = static_cast<int64_t>(next), count = row.size(0);
      EXPECT_LE((row - want.slice(0, begin, begin + count)).abs().max().item<double>(), bound);
      next = (next + static_cast<size_t>(count)) % kTexts.size(), ++passes;
    });
    EXPECT_EQ(beside, alone);
    EXPECT_EQ(passes, 9U);
    EXPECT_LE((embedder.embed(kTexts) - want).abs().max().item<double>(), bound);
    EXPECT_GT((want[0] - want[1]).abs().max().item<double>(), bound) << "other texts differ by more";
  });
}

TEST(EmbedderRow, TakesWholeTextsUpToItsTokens) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "bert-tiny");
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, distributed::ParallelConfig{}.axes());
    const run::SavedModel saved =
        run::load_model(folder / "run", mesh, {}, at::kCPU, {.tokenizer = "none", .headless = true});
    Embedder embedder(*saved.model, {.tokens_at_once = 4});
    EXPECT_EQ(embedder.embed_row(kTexts, 0).size(0), 2);  // 3 + 1 tokens
    EXPECT_EQ(embedder.embed_row(kTexts, 2).size(0), 1);  // 5 tokens run alone
    EXPECT_EQ(embedder.embed_row(kTexts, 3).size(0), 1);
    EXPECT_EQ(embedder.embed_row(kTexts, 4).size(0), 0);
  });
}

TEST(EmbedderLayout, MustHoldWholeHiddenStates) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "gpt2-tiny");
  std::vector<distributed::ParallelConfig> layouts(2);
  layouts[0].tensor.size = 4, layouts[0].tensor.mode = "2d";
  layouts[1].sequence.size = 2;
  for (const auto& layout : layouts)
    EXPECT_THAT(test::thrown_message([&] { vectors_of(folder / "run", {}, kTexts, layout); }),
                HasSubstr("embedding needs ranks that hold whole hidden states: got a layout that divides them"));
}

TEST(EmbedderFolder, RequiresTheChosenPooler) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "bert-tiny");  // objective: masked tokens
  EXPECT_THAT(test::thrown_message([&] { vectors_of(folder / "hf", {.pooling = Pooling::Pooler}); }),
              HasSubstr("bert.pooler.dense.weight"));
}

}  // namespace
}  // namespace colossal::infer::embed_test
