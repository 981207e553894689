// Vectors of prompts that an engine reads in chunks beside completions: they equal those of the whole text.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "colossal/comm/run_ranks.h"
#include "colossal/infer/embeddings/embed.h"
#include "colossal/infer/engine.h"
#include "colossal/run/saved_model.h"
#include "infer/engine_answers.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::engine_vectors_test {
namespace {

using engine_test::Tokens;
using testing::HasSubstr;

void with_model(const std::string& folder, const distributed::ParallelConfig& layout,
                const std::function<void(distributed::DistributedModel&)>& work) {
  comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, layout.axes());
    const run::SavedModel saved =
        run::load_model(folder, mesh, layout, at::kCPU, {.tokenizer = "none", .dtype = at::kDouble});
    work(*saved.model);
  });
}

Tokens text_of(int64_t first, int64_t length) {
  Tokens text;
  for (int64_t i = 0; i < length; ++i) text.push_back((first + i * i) % 90);
  return text;
}

const std::vector<Tokens> kTexts{text_of(1, 30), text_of(2, 1), text_of(3, 17), text_of(1, 30)};

/// Returns the vectors of kTexts. The engine also generates, in small steps and in a cache that is too small for all.
std::vector<std::vector<float>> vectors_of(distributed::DistributedModel& model, Pooling pooling, bool normalizes) {
  const int64_t block = ModelRunner::bytes_of_token(model) * 16;
  Engine engine(model, {.cache_bytes = 4 * block, .block_tokens = 16, .step_tokens = 7, .max_running = 4});
  std::vector<std::vector<float>> vectors(kTexts.size());
  std::vector<Tokens> completions(2);
  for (size_t i = 0; i < kTexts.size(); ++i)
    engine.add({.prompt = kTexts[i], .client = i % 2 ? "a" : "b", .pooling = pooling, .normalizes = normalizes},
               [&, i](const Event& event) {
                 EXPECT_EQ(event.token, -1);
                 EXPECT_EQ(event.finish_reason, FinishReason::AtLength);
                 EXPECT_TRUE(vectors[i].empty());
                 vectors[i] = event.vector;
               });
  EXPECT_EQ(engine.load().waiting, 0) << "callers count texts themselves";
  EXPECT_FALSE(engine.has_begun(0));
  const auto request_of = [](size_t i) {
    return Request{.prompt = text_of(60 + static_cast<int64_t>(i), 5), .options = {.max_tokens = 20}, .client = "c"};
  };
  for (size_t i = 0; i < completions.size(); ++i)
    engine.add(request_of(i), [&, i](const Event& event) {
      EXPECT_TRUE(event.vector.empty());
      completions[i].push_back(event.token);
    });
  engine.step();
  EXPECT_TRUE(engine.has_begun(0));
  while (engine.has_work()) engine.step();
  EXPECT_GT(engine.counts().preempted, 0);
  EXPECT_EQ(engine.load().blocks_used, 0);
  for (size_t i = 0; i < completions.size(); ++i) {
    Engine alone(model, {.cache_bytes = 4 * block, .block_tokens = 16});
    Tokens want;
    alone.add(request_of(i), [&](const Event& event) { want.push_back(event.token); });
    while (alone.has_work()) alone.step();
    EXPECT_EQ(completions[i], want);
  }
  return vectors;
}

/// Expects the vectors that an Embedder computes from whole texts. Both compute in fp64 and round to fp32 once, so a
/// value differs by at most an epsilon of the largest one.
void expect_those_of_whole_texts(distributed::DistributedModel& model, Pooling pooling, bool normalizes) {
  const at::Tensor want = Embedder(model, {.pooling = pooling, .normalize = normalizes}).embed(kTexts);
  const std::vector<std::vector<float>> got = vectors_of(model, pooling, normalizes);
  for (size_t i = 0; i < kTexts.size(); ++i) {
    const at::Tensor row = want[static_cast<int64_t>(i)];
    ASSERT_EQ(static_cast<int64_t>(got[i].size()), row.numel());
    const double bound = row.abs().max().item<double>() * std::numeric_limits<float>::epsilon();
    EXPECT_LE((at::tensor(got[i]) - row).abs().max().item<double>(), bound) << i;
  }
}

class EngineVectors : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { test::write_model(folder, GetParam()); }
  test::TemporaryFolder folder;
};

TEST_P(EngineVectors, EqualThoseOfWholeTexts) {
  with_model(folder / "hf", {}, [](distributed::DistributedModel& model) {
    for (const Pooling pooling : {Pooling::Cls, Pooling::Mean, Pooling::Max, Pooling::Last})
      expect_those_of_whole_texts(model, pooling, pooling != Pooling::Max);
  });
}

TEST_P(EngineVectors, EqualThoseOfWholeTextsInEveryLayout) {
  std::vector<distributed::ParallelConfig> layouts(2);
  layouts[0].tensor.size = 2;
  layouts[1].pipeline.size = 2;
  for (const distributed::ParallelConfig& layout : layouts)
    with_model(folder / "hf", layout,
               [](distributed::DistributedModel& model) { expect_those_of_whole_texts(model, Pooling::Mean, true); });
}

INSTANTIATE_TEST_SUITE_P(Models, EngineVectors, testing::Values("gpt2-tiny", "llama-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

TEST(EngineVector, LeavesCachedPrefixesToCompletions) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  with_model(folder / "hf", {}, [](distributed::DistributedModel& model) {
    Engine engine(model, {.cache_bytes = 1 << 20, .block_tokens = 16});
    int64_t found = -1;
    const auto found_after = [&](Request request) {
      engine.add(std::move(request), [&](const Event& event) { found = event.found; });
      while (engine.has_work()) engine.step();
      return found;
    };
    const Request completion{.prompt = kTexts[0], .options = {.max_tokens = 1}};
    const Request text{.prompt = kTexts[0], .pooling = Pooling::Mean};
    EXPECT_EQ(found_after(text), 0);
    EXPECT_EQ(found_after(completion), 0) << "of the text, no block is kept";
    EXPECT_EQ(found_after(text), 0) << "a text needs the states of all its tokens";
    EXPECT_EQ(found_after(completion), 16);
  });
}

TEST(EngineVector, RefusesModelsWithoutHiddenStates) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  distributed::ParallelConfig divided;
  divided.sequence.size = 2;
  const auto refusal = [&](const distributed::ParallelConfig& layout, bool alone, Pooling pooling) {
    return test::thrown_message([&] {
      with_model(folder / "hf", layout, [&](distributed::DistributedModel& model) {
        Engine(model, {.cache_bytes = 1 << 20, .block_tokens = 16, .alone = alone})
            .add({.prompt = {1, 2}, .pooling = pooling});
      });
    });
  };
  const char* want = "a vector of a prompt needs the batching engine, ranks that hold whole hidden states";
  EXPECT_THAT(refusal(divided, false, Pooling::Mean), HasSubstr(want));
  EXPECT_THAT(refusal({}, true, Pooling::Mean), HasSubstr(want));
  EXPECT_THAT(refusal({}, false, Pooling::Pooler), HasSubstr(want));
}

}  // namespace
}  // namespace colossal::infer::engine_vectors_test
