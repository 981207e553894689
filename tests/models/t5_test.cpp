// T5: sizes, costs, conversion to its folder and back, the encoder alone, and decoding. tests/interop/t5_interop.py
// checks that it computes what transformers computes.
#include "colossal/models/families/t5.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>

#include "colossal/base/json.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/generate.h"
#include "colossal/models/config.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/nn/serial_layers.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::models::t5_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

double millions(const std::string& name) {
  nn::Parameters parameters({}, {.without_memory = true});
  nn::SerialLayers layers(parameters);
  make_model(built_in().resolve({.name = name}), layers);
  return static_cast<double>(parameters.numel()) / 1e6;
}

// The counts come from transformers' models of the published folders.
TEST(T5, MatchesPublishedParameterCounts) {
  EXPECT_NEAR(millions("t5-small"), 60.51, 0.01);
  EXPECT_NEAR(millions("t5-base"), 222.90, 0.01);
  EXPECT_NEAR(millions("t5-large"), 737.67, 0.01);
  EXPECT_NEAR(millions("t5-v1.1-small"), 76.96, 0.01);
  EXPECT_NEAR(millions("t5-v1.1-base"), 247.58, 0.01);
  EXPECT_NEAR(millions("t5-v1.1-xl"), 2849.76, 0.01);
  EXPECT_EQ(std::llround(millions("t5-v1.1-xxl-encoder") * 1e6), 4'762'310'656);
}

TEST(T5, RoundTripsTheEncoderAloneThroughFolder) {
  const ModelShape shape = built_in().resolve({.name = "t5-encoder-tiny"});
  nlohmann::json config = shape.architecture->hugging_face.to_json(shape);
  EXPECT_EQ(config["architectures"], nlohmann::json({"T5EncoderModel"}));
  EXPECT_TRUE(built_in().shape_of(config) == shape) << config;
  for (const bool flag : {true, false}) config["is_encoder_decoder"] = config["tie_word_embeddings"] = flag;
  config["dropout_rate"] = 0.1;
  config["num_decoder_layers"] = 24;
  EXPECT_TRUE(built_in().shape_of(config) == shape) << "keys of the decoder and of training";
  std::set<std::string> tensors;
  for (const nn::ExternalName& name : shape.architecture->hugging_face.names(shape))
    for (const nn::ExternalRows& row : name.parts) tensors.insert(row.name);
  EXPECT_THAT(tensors, testing::IsSupersetOf({"shared.weight", "encoder.final_layer_norm.weight",
                                              "encoder.block.1.layer.1.DenseReluDense.wi_1.weight"}));
  for (const std::string& tensor : tensors) EXPECT_FALSE(tensor.starts_with("decoder") || tensor == "lm_head.weight");
  EXPECT_THAT(test::thrown_message([&] { built_in().resolve({.name = "t5-encoder-tiny", .dropout = 0.1}); }),
              HasSubstr("has no dropout: got 0.1"));
}

TEST(T5, RoundTripsShapeThroughFolder) {
  for (const bool is_first : {true, false}) {
    ModelShape shape = test::tiny_t5(is_first);
    auto own = shape.own.as<T5Sizes>();
    own.source_tokens = 0;  // a key for training only, which folders do not store
    shape.own = own;
    const nlohmann::json config = shape.architecture->hugging_face.to_json(shape);
    EXPECT_TRUE(built_in().shape_of(config) == shape) << config;
    EXPECT_EQ(config["feed_forward_proj"], is_first ? "relu" : "gated-gelu");
    EXPECT_FALSE(config.contains("scale_decoder_outputs"));
  }
  nlohmann::json config = test::tiny_t5().architecture->hugging_face.to_json(test::tiny_t5());
  config["scale_decoder_outputs"] = false;
  EXPECT_FALSE(built_in().shape_of(config).own.as<T5Sizes>().scaled_head);
  config.erase("num_decoder_layers");
  EXPECT_EQ(built_in().shape_of(config).layers, 4);
  const auto refusal = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json other = config;
    other[key] = value;
    return test::thrown_message([&] { built_in().shape_of(other); });
  };
  EXPECT_THAT(refusal("feed_forward_proj", "gated-what"), HasSubstr("feed_forward_proj must be a known activation"));
  EXPECT_THAT(refusal("is_decoder", true), HasSubstr("is_decoder"));
  EXPECT_THAT(refusal("relative_attention_num_buckets", 7), HasSubstr("buckets"));
}

TEST(T5, RefusesSizesThatDoNotFit) {
  const auto refusal = [](std::vector<std::string> keys, int64_t layers) {
    return test::thrown_message(
        [&] { built_in().resolve({.name = "t5-tiny", .layers = layers, .own = own_keys(std::move(keys))}); });
  };
  EXPECT_THAT(refusal({"decoder_layers=4"}, 4), HasSubstr("at least one of each: got layers 4, decoder_layers 4"));
  EXPECT_THAT(refusal({}, 1), HasSubstr("at least one of each"));
  EXPECT_THAT(refusal({"start_id=40000"}, 4), HasSubstr("start_id must lie in the vocabulary"));
}

TEST(T5, CountsCostsOfDecoderBlocks) {
  const ModelShape s = test::tiny_t5();
  const Costs costs = costs_of(s, example_batch(s, 1, 9));
  const double source = 4, answer = 5, heads = static_cast<double>(s.heads * s.head_dim),
               hidden = static_cast<double>(s.hidden), ffn = static_cast<double>(s.ffn);
  const double encoder = 6 * source * hidden * (4 * heads + 2 * ffn) + 12 * heads * source * source;
  const double decoder = 6 * hidden * (answer * (6 * heads + 2 * ffn) + source * 2 * heads) +
                         12 * heads * (answer * (answer + 1) / 2 + answer * source);
  EXPECT_THAT(costs.blocks, ElementsAre(encoder, encoder, decoder, decoder, decoder));
  EXPECT_EQ(costs.last, 6 * answer * hidden * static_cast<double>(s.vocabulary));
}

TEST(T5, UsesPositionTableOnStagesWithItsBlocks) {
  const ModelShape s = test::tiny_t5();  // two blocks of the encoder, three of the decoder
  const std::vector<int64_t> cuts{0, 1, 3, 5};
  EXPECT_THAT(stages_using("encoder_positions.weight", s, cuts), ElementsAre(0, 1));
  EXPECT_THAT(stages_using("decoder_positions.weight", s, cuts), ElementsAre(1, 2));
  EXPECT_THAT(stages_using("embedding.weight", s, cuts), ElementsAre(0, 2));
}

TEST(T5, EncodesAloneAsWithAnswer) {
  const at::NoGradGuard no_grad;
  const ModelShape s = test::tiny_t5();
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers layers(parameters);
  const Model model = make_model(s, layers);
  const at::Tensor row = at::arange(9, at::kLong).view({1, 9});
  const Stage encoder{.last = 2, .ends = false};
  const auto read = [&](const nn::ForwardContext& step) { return run_stage(model, encoder, {}, step)[1]; };
  const at::Tensor with_answer = read(nn::step_of(nn::token_batch(row)));
  EXPECT_EQ(with_answer.size(1), 4);
  nn::ForwardContext step = nn::step_of(nn::token_batch(row.narrow(1, 0, 4)), {.parts = {nn::SourceTokens{4}}});
  EXPECT_TRUE(at::equal(read(step), with_answer));
  step = nn::step_of(nn::token_batch(row), {.parts = {nn::SourceTokens{10}}});
  EXPECT_THAT(test::thrown_message([&] { read(step); }),
              HasSubstr("source_tokens must be at most the row's length, 9: got 10"));
}

/// Padding of a source must not change results.
TEST(T5, IgnoresPaddingOfSource) {
  const at::NoGradGuard no_grad;
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers layers(parameters);
  const Model model = make_model(test::tiny_t5(), layers);
  const Stage all{.last = 5};
  const at::Tensor answer = at::arange(5, at::kLong) + 20;
  const at::Tensor filled = at::cat({at::tensor({3, 1, 9, 9}, at::kLong), answer}).unsqueeze(0);
  nn::ForwardContext step = nn::step_of(nn::token_batch(filled));
  step.documents = at::tensor({0, 0, 1, 1, 0, 0, 0, 0, 0}, at::kLong).unsqueeze(0);
  const at::Tensor alone = at::cat({filled.narrow(1, 0, 2), filled.narrow(1, 4, 5)}, 1);
  const nn::ForwardContext exact = nn::step_of(nn::token_batch(alone), {.parts = {nn::SourceTokens{2}}});
  EXPECT_TRUE(at::allclose(run_stage(model, all, {}, step)[0], run_stage(model, all, {}, exact)[0], 1e-12, 1e-12));
}

/// Returns the greedy answer to a prompt: with a cache on the ranks of a layout, without one on one process, which
/// recomputes the whole row for each token.
std::vector<int64_t> answer(const ModelShape& shape, const distributed::ParallelConfig& config, bool with_cache) {
  std::vector<int64_t> tokens;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, config.axes());
    distributed::DistributedModel model(mesh, config, shape, {at::kDouble, at::kCPU, 5}, {});
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : model.parameters())
      // larger weights, because otherwise all answers repeat one token
      if (p.name.starts_with("blocks.") && p.value.dim() > 1) p.value.mul_(4);
    std::vector<int64_t> row{5, 9, 2, 30, 7, 1}, found;
    if (with_cache) {
      found = infer::generate(
          model, {.prompt = {5, 9, 2, 30, 7}, .end_ids = {1}, .options = {.max_tokens = 6}, .prompt_end = 1});
    } else {
      row.push_back(0);
      for (; found.size() < 6; row.push_back(found.back())) {
        const at::Tensor ids = at::tensor(row, at::kLong).unsqueeze(0);
        const nn::ForwardContext step = nn::step_of(nn::token_batch(ids), {.parts = {nn::SourceTokens{6}}});
        const at::Tensor hidden = run_stage(model.model(), {.last = shape.layers}, {}, step)[0];
        found.push_back(model.model().head->logits(hidden, step)[0][-1].argmax().item<int64_t>());
        if (found.back() == 1) break;
      }
    }
    const std::lock_guard lock(mutex);
    tokens = found;
  });
  return tokens;
}

TEST(T5, AnswersWithCacheAsWithoutInAllLayouts) {
  for (const bool is_first : {true, false}) {
    const ModelShape shape = test::tiny_t5(is_first);
    const std::vector<int64_t> wanted = answer(shape, {}, false);
    EXPECT_GT(std::set<int64_t>(wanted.begin(), wanted.end()).size(), 1U);
    EXPECT_EQ(answer(shape, {}, true), wanted);
    EXPECT_EQ(answer(shape, {.tensor = {.size = 2}}, true), wanted);
    EXPECT_EQ(answer(shape, {.tensor = {.size = 4, .mode = "2d"}}, true), wanted);
    EXPECT_EQ(answer(shape, {.pipeline = {.size = 3}}, true), wanted);
  }
}

}  // namespace
}  // namespace colossal::models::t5_test
