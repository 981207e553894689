// The purpose of Megatron's sequence form: all activations of a transformer layer are sharded (Korthikanti et al.
// 2022, arXiv:2205.05198, section 4.2). It must not prevent decoding, which takes any number of tokens.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/distributed/config.h"
#include "colossal/infer/generate.h"
#include "colossal/memory/account.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/parallel/sequence/attention_cost.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "colossal/train/engine.h"
#include "colossal/train/placed_model.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::sequence_form_test {
namespace {

using parallel::TensorConfig;

constexpr int64_t kRanks = 4, kBatch = 1, kSequence = 64;

models::ModelShape wide_gpt2() {
  return {.architecture = models::built_in().at("gpt2"),
          .vocabulary = 64,
          .hidden = 128,
          .layers = 2,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 32,
          .ffn = 512,
          .positions = kSequence,
          .dropout = 0.1};
}

/// Returns the bytes that the blocks keep from forward for backward on a rank, without their parameters, input and
/// output.
int64_t kept_bytes(const TensorConfig& tensor, const parallel::SequenceConfig& sequence = {}) {
  const distributed::ParallelConfig config{.sequence = sequence, .tensor = tensor};
  std::vector<int64_t> bytes(config.ranks());
  comm::run_ranks(static_cast<int>(config.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, config.axes());
    nn::Parameters parameters(mesh.coordinates(), {});
    const parallel::Layout layout = parallel::with_sequence(parallel::make_layout(tensor, mesh), sequence);
    parallel::TensorLayers make(parameters, layout);
    const models::Model model = models::make_model(wide_gpt2(), make);
    const auto longs = at::TensorOptions().dtype(at::kLong);
    const nn::ForwardContext step = layout.with_cut(
        nn::step_of(nn::token_batch(at::ones({kBatch, kSequence}, longs),
                                    at::arange(kSequence, longs).expand({kBatch, kSequence}).contiguous()),
                    {.training = true, .dropout_seed = 1}),
        kSequence);
    const at::Tensor x = model.embed(*step.batch, step).detach().requires_grad_();
    const memory::Account account;
    const memory::KindScope kind(memory::Kind::Activations);
    at::Tensor h = x;
    for (const auto& block : model.blocks) h = block(h, step);
    bytes[world.rank()] = account.usage().of(memory::Kind::Activations) - static_cast<int64_t>(h.storage().nbytes());
  });
  EXPECT_EQ(*std::min_element(bytes.begin(), bytes.end()), *std::max_element(bytes.begin(), bytes.end()));
  return bytes.front();
}

// A rank keeps 1/p of the bytes of one process. It keeps in full the bounds between which each query of a row may look
// (three integers per token). 1D replicates two statistics per norm and token, and the inputs of norms and of expands;
// the caller owns the first input. With keep_gathered the inputs of expands, 2 sbh per layer, are whole. All to the
// byte.
TEST(SequenceForm, ShardsEveryActivation) {
  const models::ModelShape shape = wide_gpt2();
  const int64_t tokens = kBatch * kSequence, state = tokens * shape.hidden * 4;  // bytes of a hidden state
  const int64_t bounds = shape.layers * 3 * kSequence * 8, statistics = 2 * shape.layers * 2 * tokens * 4;
  const int64_t replicated = (4 * shape.layers - 1) * state + statistics;
  const int64_t whole = kept_bytes({}), split = kept_bytes({.size = kRanks, .sequence = true});
  EXPECT_EQ(split, (whole - bounds) / kRanks + bounds);
  EXPECT_EQ(kept_bytes({.size = kRanks}) - split, replicated * (kRanks - 1) / kRanks);
  EXPECT_EQ(kept_bytes({.size = kRanks, .keep_gathered = true, .sequence = true}) - split,
            shape.layers * 2 * state * (kRanks - 1) / kRanks);
}

// If parallel.sequence splits tokens, a rank keeps 1/N of everything except attention, for which the formula of its
// mode holds. q, k and v are views of one projection, of which no other part may be kept. All to the byte.
TEST(SequenceActivations, ShardsAllActivationsButAttention) {
  const models::ModelShape shape = wide_gpt2();
  const auto of_attention = [&](const parallel::SequenceConfig& sequence) {
    const auto ranks = parallel::published_cost(sequence, {.batch = kBatch,
                                                           .tokens = kSequence,
                                                           .heads = shape.heads,
                                                           .kv_heads = shape.kv_heads,
                                                           .head_dim = shape.head_dim});
    return shape.layers * static_cast<int64_t>(ranks.front().activation_bytes);
  };
  const int64_t others = kept_bytes({}) - of_attention({.size = 1, .mode = "ulysses"});  // whole rows
  for (const parallel::SequenceConfig& sequence : parallel::sequence_modes(kRanks))
    EXPECT_EQ(kept_bytes({}, sequence) - of_attention(sequence), others / kRanks) << parallel::mode_name(sequence);
}

run::Config config_of(const TensorConfig& tensor, int64_t pipeline, const parallel::SequenceConfig& sequence = {}) {
  run::Config c;
  c.precision.mode = "fp64";
  c.parallel.tensor = tensor;
  c.parallel.pipeline.size = pipeline;
  c.parallel.sequence = sequence;
  c.parallel.zero = 3;
  c.data.sequence = 6;
  c.training = {.steps = 3, .batch_size = 4, .seed = 1};
  c.optimizer.epsilon = 1e-3;
  c.optimizer.warmup_steps = 1;
  return c;
}

/// Trains for three steps, then generates from a prompt of three tokens.
std::vector<int64_t> generated(const TensorConfig& tensor, int64_t pipeline,
                               const parallel::SequenceConfig& sequence = {}) {
  const run::Config config = config_of(tensor, pipeline, sequence);
  std::vector<std::vector<int64_t>> ids(config.parallel.ranks());
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = train::initialize(world, config, tiny_llama());
    for (int step = 0; step < 3; ++step) {
      const auto longs = at::TensorOptions().dtype(at::kLong);
      const at::Tensor tokens = at::arange(4 * 7, longs).mul(step + 3).remainder(37).view({4, 7});
      engine->zero_grad();
      const tensor::Batch batch =
          data::text_batch(tokens.narrow(1, 0, 6), tokens.narrow(1, 1, 6), at::arange(6, longs).repeat({4, 1}));
      engine->train_step(batch);
      engine->step();
      engine->evaluate(batch);
    }
    ids[world.rank()] = infer::generate(engine->distributed(), {.prompt = {5, 1, 7}, .options = {.max_tokens = 8}});
  });
  for (const auto& rank : ids) EXPECT_EQ(rank, ids.front());
  return ids.front();
}

TEST(SequenceForm, GeneratesLikeOneProcessAfterTraining) {
  const std::vector<int64_t> want = generated({}, 1);
  ASSERT_EQ(want.size(), 8u);
  EXPECT_EQ(generated({.size = 2, .sequence = true}, 1), want);
  EXPECT_EQ(generated({.size = 3, .sequence = true}, 2), want);
  EXPECT_EQ(generated({}, 1, {.size = 2, .mode = "ring"}), want);
}

TEST(SequenceForm, RefusesASequenceThatDoesNotDivide) {
  run::Config config = config_of({.size = 4, .sequence = true}, 1);
  const tensor::Batch example = batch_of_ones(tiny_gpt2(), 1, 6);
  EXPECT_EQ(
      thrown_message([&] { train::check_sizes(config.parallel, tiny_gpt2(), example); }),
      "[1d] the tokens of a row (data.sequence) must be divisible by the 4 ranks that split them: got 6; nearest: 8");
  config.parallel.tensor = {.size = 4, .mode = "2d", .sequence = true};
  EXPECT_EQ(
      thrown_message([&] { config.validate(); }),
      "[parallel] tensor.sequence needs mode 1d: mode 2d splits hidden states already; set tensor.sequence = false");
}

}  // namespace
}  // namespace colossal::test::sequence_form_test
