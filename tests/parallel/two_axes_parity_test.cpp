// A denoiser whose blocks attend over the columns of a picture, its places, and then over the rows, its frames, under
// dynamic sequence parallelism against one process in fp64: losses, gradients, and weights after some steps. Neither
// axis divides. With collectives off each case must fail with a ParityError, or it proves nothing.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/activation.h"
#include "colossal/train/placed_model.h"
#include "support/noised_pictures.h"
#include "support/pair_of_axes.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::two_axes_parity_test {
namespace {

using models::ModelShape;
using testing::HasSubstr;

constexpr int64_t kFrames = 3, kPlaces = 5, kChannels = 2;

models::Task task(const ModelShape&) {
  return {.reads = models::Reads::Fields, .writes = models::Writes::Nothing, .objective = "diffusion"};
}

void settle(ModelShape& s) {
  s.positions = kPlaces;
  s.set(models::AttentionAxes{.two = true});
  s.set(models::DenoiserSizes{
      .channels = kChannels, .height = kFrames, .width = kPlaces, .outputs = kChannels, .classes = 2});
}

/// The pixels with their positions and the time: [B, own places, frames * H].
class Input {
 public:
  Input(const ModelShape& s, nn::Layers& make)
      : part_(make.field_part()),
        tokens_(make.own_tokens()),
        weight_(make.vector("input.weight", {s.hidden, kChannels}, {.init = nn::Init::normal(1)})),
        places_(make.vector("places.weight", {kPlaces, s.hidden}, {.features = 1, .init = nn::Init::normal(1)})),
        frames_(make.vector("frames.weight", {kFrames, s.hidden}, {.features = 1, .init = nn::Init::normal(1)})),
        times_(make.vector("times.weight", {s.hidden}, {})) {}

  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
    const nn::Share own = tokens_(step).sequence;
    const auto field = [&](const char* name) { return part_(batch.field(name), step).to(weight_->value()); };
    const at::Tensor pixels = own.of(field("noised").permute({0, 3, 2, 1}), 1, "places");
    const at::Tensor at_places = own.of(places_->value(), 0, "places").unsqueeze(1);
    const at::Tensor time = (field("times") / 1000).view({-1, 1, 1, 1});
    const at::Tensor x = nn::linear(pixels, weight_->value(), {}) + at_places + frames_->value();
    return (x + time * times_->value()).flatten(2);
  }

 private:
  nn::FieldPart part_;
  nn::OwnTokens tokens_;
  std::unique_ptr<nn::Vector> weight_, places_, frames_, times_;
};

/// [B, own places, frames * H] -> [frames of all rows, own places, H].
at::Tensor by_frames(const at::Tensor& x) { return x.unflatten(2, {kFrames, -1}).transpose(1, 2).flatten(0, 1); }

/// A pair of blocks, then a feed-forward layer and dropout.
class Block {
 public:
  Block(const ModelShape& s, const std::string& name, nn::Layers& make)
      : norm_(make.layer_norm(name + ".norm", s.hidden, {.epsilon = 1e-6})),
        pair_(make, name + ".pair", s.attention()),
        up_(make.expand(name + ".up", s.hidden, s.ffn, {})),
        down_(make.contract(name + ".down", s.ffn, s.hidden, {})),
        dropout_(make.dropout(name + ".dropout", s.hidden, 0.25)) {}

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    const at::Tensor pair = pair_.forward(norm_->forward(by_frames(x)), {x.size(0), kPlaces}, step);
    const at::Tensor h = by_frames(x) + pair;
    nn::ForwardContext of_frames = step;  // a frame is a row of the masks
    of_frames.first_row *= kFrames;
    const at::Tensor y = dropout_->forward(down_->forward(up_->forward(h).map(ops::gelu, step)), of_frames);
    return (h + y).unflatten(0, {x.size(0), kFrames}).transpose(1, 2).flatten(2);
  }

 private:
  std::unique_ptr<nn::Norm> norm_;
  PairOfAxes pair_;
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::Contract> down_;
  std::unique_ptr<nn::Dropout> dropout_;
};

models::Model make(const ModelShape& s, nn::Layers& layers) {
  using tensor::Dim;
  models::Model model;
  model.fields = {"noised", "times"};
  const auto sizes = [s](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
    return {step.batch->rows(), step.batch->at("noised").size(3), kFrames * s.hidden};
  };
  model.states = {{.name = "hidden", .dims = {Dim::Row, Dim::Token, Dim::Other}, .sizes = sizes}};
  const auto input = std::make_shared<const Input>(s, layers);
  model.embed = [input](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return input->forward(batch, step);
  };
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto block = std::make_shared<const Block>(s, concat("blocks.", i), layers);
    model.blocks.push_back(
        [block](const at::Tensor& x, const nn::ForwardContext& step) { return block->forward(x, step); });
  }
  const std::shared_ptr<nn::Outputs> outputs = layers.outputs("head", s.hidden, kChannels, {.deviation = 0.5});
  model.norm = [outputs](const at::Tensor& x, const nn::ForwardContext& step) {
    return outputs->forward(by_frames(x), step).unflatten(0, {x.size(0), kFrames}).flatten(1, 2);
  };
  return model;
}

ModelShape two_axes() {
  const auto architecture = std::make_shared<const models::Architecture>(
      models::Architecture{.name = "two-axes", .make = make, .task = task, .settle = settle});
  ModelShape shape{.architecture = architecture,
                   .hidden = 8,
                   .layers = 2,
                   .heads = 2,
                   .kv_heads = 2,
                   .head_dim = 4,
                   .ffn = 12,
                   .tied = false};
  settle(shape);
  return shape;
}

ParityCase dsp(int64_t ranks) {
  return {.shape = two_axes(), .sequences = {ranks, "dsp"}, .batch = 2, .sequence = kPlaces * kFrames, .steps = 2};
}

void both(ParityCase c) {
  EXPECT_NO_THROW(check_parity(c));
  c.collectives_off = true;
  c.steps = 1;
  EXPECT_THROW(check_parity(c), ParityError);
}

TEST(TwoAxes, EqualOneProcessOnAnyNumberOfRanks) {
  for (const int64_t ranks : {2, 4}) both(dsp(ranks));
}

TEST(TwoAxes, EqualOneProcessInOtherModes) {
  for (const char* mode : {"ulysses", "ring"}) {
    ParityCase c = dsp(2);
    c.sequences.mode = mode;
    EXPECT_NO_THROW(check_parity(c)) << mode;
  }
}

TEST(TwoAxes, EqualOneProcessWithReplicasThatShardParameters) {
  ParityCase c = dsp(3);
  c.data = 2;
  c.batch = 4;
  c.zero = 3;
  c.recompute = "block";
  both(c);
}

TEST(TwoAxes, EqualOneProcessWithPipelinesAndTensorParallelism) {
  ParityCase c = dsp(3);
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  c.tensor.size = 2;
  c.recompute = "selective";
  EXPECT_NO_THROW(check_parity(c));
}

/// Returns the end of a drawing pass on `ranks` ranks, and adds the elements that their switches send to `sent`.
at::Tensor drawn(int ranks, const tensor::Batch& batch, std::atomic<int64_t>& sent) {
  at::Tensor end;
  comm::run_ranks(ranks, [&](comm::World& world) {
    distributed::ParallelConfig config;
    config.sequence = {ranks, "dsp"};
    comm::Mesh mesh(world, config.axes());
    distributed::DistributedModel model(mesh, config, two_axes(), {.dtype = at::kDouble}, {});
    world.traffic().reset();
    const at::Tensor like = at::empty({batch.rows(), kFrames * kPlaces, kChannels}, at::kDouble);
    const at::Tensor own = model.everywhere(
        nn::step_of(batch), [](int, const models::States& states, const auto&) { return states.at(0); }, like);
    sent += static_cast<int64_t>(world.traffic().total("sequence", "all_to_all").elements);
    if (world.rank() == ranks - 1) end = own.detach();
  });
  return end;
}

TEST(TwoAxes, DrawOnRanksThatSplitPlaces) {
  const tensor::Batch batch = noised_pictures(two_axes(), 2, 1);
  std::atomic<int64_t> none = 0, sent = 0;
  const at::Tensor whole = drawn(1, batch, none), split = drawn(2, batch, sent);
  EXPECT_GT(whole.abs().max().item<double>(), 0.1);
  expect_within(split, whole, 1e-12, "the prediction");
  EXPECT_EQ(none, 0);
  EXPECT_EQ(sent, 2 * 2 * (2 * kFrames * kPlaces * 8) / 2) << "two switches of each of two blocks";
}

TEST(TwoAxes, NeedAModelThatHasThem) {
  const auto world = comm::make_simulated_world(0, 2);
  distributed::ParallelConfig config;
  config.sequence = {2, "dsp"};
  comm::Mesh mesh(*world, config.axes());
  const auto refused = [&](const auto& call) { return thrown_message(call); };
  EXPECT_THAT(refused([&] { distributed::DistributedModel(mesh, config, tiny_dit(), {}, {}); }),
              HasSubstr("dit attends over one sequence of tokens; use ring or ulysses"));
  ModelShape flux = tiny_dit();
  flux.set(models::AttentionAxes{.sequence = "text and picture"});
  EXPECT_THAT(refused([&] { distributed::check_attention_axes(config, flux, "flux-dev"); }),
              HasSubstr("flux-dev attends over one sequence of text and picture; use ring or ulysses"));
  EXPECT_NO_THROW(distributed::check_attention_axes({}, flux));
  EXPECT_THAT(refused([&] { train::check_sizes(config, tiny_gpt2(), batch_of_ones(tiny_gpt2(), 1, 8)); }),
              HasSubstr("gpt2 attends over one sequence of tokens"));
}

}  // namespace
}  // namespace colossal::test::two_axes_parity_test
