// The model of examples/own_layer, whose blocks have a convolution over neighbouring tokens and a group norm, gives the
// results of one process under every layout, in training and in generation.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/engine.h"
#include "colossal/infer/generate.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/loss_head.h"
#include "colossal/train/engine.h"
#include "hybrid.h"
#include "infer/engine_answers.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::train::own_layer_test {
namespace {

using test::ParityCase;
using testing::HasSubstr;
using Tokens = std::vector<int64_t>;

models::ModelShape hybrid(const std::vector<std::string>& keys = {}) {
  models::Registry models = models::built_in();
  models.add(hybrid_architecture());
  return models.resolve({.name = "hybrid-tiny", .layers = 2, .own = models::own_keys(keys)});
}

/// Eight rows of 16 tokens in two documents, whose border lies within the reach of a convolution at a border of ranks.
ParityCase some(ParityCase c) {
  c.shape = hybrid();
  c.batch = 8, c.sequence = 16, c.first_document = 9, c.steps = 2;
  return c;
}

/// Every tensor mode, sequence mode, pipeline and ZeRO stage at least once, in pairs.
std::vector<ParityCase> layouts() {
  return {
      {.data = 2, .tensor = {.size = 2}, .zero = 1},
      {.tensor = {.size = 2, .sequence = true}, .pipeline = {.size = 2, .micro_batches = 2}},
      {.tensor = {.size = 4, .mode = "2d"}, .recompute = "block"},
      {.tensor = {.size = 8, .mode = "2.5d", .depth = 2}},
      {.tensor = {.size = 8, .mode = "3d"}},
      {.tensor = {.size = 2}, .sequences = {.size = 2, .mode = "gather"}},
      {.data = 2, .sequences = {.size = 2, .mode = "ulysses"}, .zero = 2},
      {.data = 2, .sequences = {.size = 2, .mode = "ring"}, .zero = 3},
      {.sequences = {.size = 4, .mode = "usp", .ulysses = 2}},
      {.sequences = {.size = 4, .mode = "ring-self-attention"}, .recompute = "block"},
      {.sequences = {.size = 2, .mode = "ring"}, .pipeline = {.size = 2, .micro_batches = 2}},
  };
}

TEST(OwnLayer, EqualsOneProcessUnderEveryLayout) {
  for (const ParityCase& c : layouts()) test::check_parity(some(c));
}

TEST(OwnLayer, EqualsOneProcessIfRunsAreShorterThanAHalo) {
  ParityCase c = some({.sequences = {.size = 4, .mode = "ring"}});
  c.sequence = 9, c.first_document = 4;
  test::check_parity(c);
}

/// A model with the initial weights in fp64, on the ranks of a layout.
void with_model(const distributed::ParallelConfig& layout,
                const std::function<void(distributed::DistributedModel&, bool is_first)>& work) {
  run::Config config = test::course_config();
  config.parallel = layout;
  config.parallel.chunk_mib = 0.01;
  comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, hybrid({"width=5"}));
    work(engine->distributed(), world.rank() == 0);
  });
}

/// Requests of unequal lengths; some have a common beginning. Sampling shows small differences.
std::vector<infer::Request> requests() {
  std::vector<infer::Request> all;
  for (int64_t i = 0; i < 6; ++i) {
    infer::Request request{.options = {.max_tokens = 7 + i}};
    for (int64_t t = 0; t < 1 + 7 * i % 24; ++t)
      request.prompt.push_back(i % 2 ? 60 + t % 3 : (37 * (i + 3) * t) % 257);
    if (i != 1) request.options.sampling = {.temperature = 1, .seed = i};
    all.push_back(request);
  }
  return all;
}

std::vector<Tokens> alone(distributed::DistributedModel& model) {
  std::vector<Tokens> answers;
  for (const infer::Request& request : requests()) answers.push_back(infer::generate(model, request));
  return answers;
}

int64_t bytes_of(int64_t blocks) { return blocks * 16 * 2 * 4 * 2 * 12 * 8; }  // layers, heads, k and v, features, fp64

TEST(OwnLayer, GeneratesWhatAFullPassPredicts) {
  with_model({}, [](distributed::DistributedModel& model, bool) {
    infer::Request request{.prompt = {72, 101}, .options = {.max_tokens = 20}};
    Tokens text = request.prompt;
    const Tokens answer = infer::generate(model, request);
    ASSERT_EQ(answer.size(), 20u);
    for (const int64_t token : answer) {
      const at::NoGradGuard no_grad;
      const at::Tensor ids = at::tensor(text, at::kLong).unsqueeze(0);
      const at::Tensor logits = model.everywhere(
          nn::step_of(nn::token_batch(ids, at::arange(ids.size(1)).unsqueeze(0))),
          [&](int, const models::States& end, const nn::ForwardContext& step) {
            return model.decoding_model().head->logits(end[0].narrow(1, end[0].size(1) - 1, 1), step)[0][0];
          },
          at::empty({257}, at::kDouble));
      EXPECT_EQ(logits.argmax().item<int64_t>(), token) << "after " << text.size() << " tokens";
      text.push_back(token);
    }
  });
}

// Small steps read prompts in chunks, few blocks preempt requests, and drafts are refused after they were read.
TEST(OwnLayer, GeneratesInTheEngineWhatARequestAloneGets) {
  with_model({}, [](distributed::DistributedModel& model, bool) {
    const std::vector<Tokens> want = alone(model);
    int64_t preempted = 0, refused = 0;
    for (const int64_t step_tokens : {3, 512})
      for (const int64_t blocks : {3, 40})
        for (const int64_t drafts : {0, 3}) {
          infer::Engine engine(model, {.cache_bytes = bytes_of(blocks),
                                       .block_tokens = 16,
                                       .step_tokens = step_tokens,
                                       .draft_tokens = drafts});
          EXPECT_EQ(infer::engine_test::answers_of(engine, requests()), want)
              << step_tokens << " tokens a step, " << blocks << " blocks, " << drafts << " drafts";
          preempted += engine.counts().preempted;
          refused += engine.draft_counts().proposed - engine.draft_counts().accepted;
          EXPECT_EQ(engine.counts().found_tokens, 0) << "a sequence is read from its start";
        }
    EXPECT_GT(preempted, 0);
    EXPECT_GT(refused, 0);
  });
}

TEST(OwnLayer, GeneratesTheSameUnderEveryLayout) {
  std::vector<Tokens> want;
  with_model({}, [&](distributed::DistributedModel& model, bool) { want = alone(model); });
  for (const distributed::ParallelConfig& layout :
       std::vector<distributed::ParallelConfig>{{.tensor = {.size = 4, .mode = "2d"}},
                                                {.pipeline = {.size = 2}},
                                                {.sequence = {.size = 2, .mode = "ring"}},
                                                {.sequence = {.size = 2, .mode = "ulysses"}}})
    with_model(layout, [&](distributed::DistributedModel& model, bool is_first) {
      const std::vector<Tokens> got = alone(model);
      infer::Engine engine(model, {.cache_bytes = bytes_of(40), .block_tokens = 16, .step_tokens = 5});
      const std::vector<Tokens> batched = infer::engine_test::answers_of(engine, requests());
      if (!is_first) return;
      EXPECT_EQ(got, want) << layout.sequence.mode << ", pipeline " << layout.pipeline.size;
      EXPECT_EQ(batched, want) << layout.sequence.mode << ", pipeline " << layout.pipeline.size;
    });
}

TEST(OwnLayer, RefusesWhatItCannotGenerate) {
  with_model({}, [](distributed::DistributedModel& model, bool) {
    infer::Engine engine(model, {.cache_bytes = bytes_of(40), .block_tokens = 16});
    infer::Request request{.prompt = {1, 2, 3}, .options = {.max_tokens = 2, .attention_sinks = 1}};
    EXPECT_THAT(test::thrown_message([&] { engine.add(request, {}); }),
                HasSubstr("attention_sinks drop tokens, which layers that read the tokens before each token do not "
                          "support: got 1"));
    EXPECT_THAT(test::thrown_message([&] {
                  infer::Engine(model,
                                {.cache_bytes = bytes_of(40), .block_tokens = 16, .draft_tokens = 2, .draft = &model});
                }),
                HasSubstr("a draft model must have no layers that read the tokens before each token: got a hybrid"));
  });
}

}  // namespace
}  // namespace colossal::train::own_layer_test
