#include "streams.h"

#include <ATen/ATen.h>

#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/reports.h"

namespace models = colossal::models;
namespace nn = colossal::nn;
namespace ops = colossal::ops;
namespace tensor = colossal::tensor;
using colossal::concat;
using colossal::require;

void StreamsSizes::fields(colossal::Fields& f) {
  f.integer("slots", slots, "slots", "number of equal runs of tokens of which pairs are made", 1, 1024);
  f.integer("pair", pair, "features", "width of the state of pairs", 1, 65536);
}

namespace {

constexpr double kDeviation = 0.02;    // standard deviation of initial weights
constexpr int kHidden = 0, kPair = 1;  // indices of the two states

/// A feed-forward layer: x -> down(gelu(up(norm(x)))) for x [B, tokens, in]. The tokens may be slots or pairs.
class Mlp {
 public:
  Mlp(const std::string& name, int64_t in, int64_t inner, int64_t out, nn::Layers& make)
      : norm_(make.layer_norm(name + ".norm", in, {})),
        up_(make.expand(name + ".up", in, inner, {.deviation = kDeviation})),
        down_(make.contract(name + ".down", inner, out, {.deviation = kDeviation})) {}
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    return down_->forward(up_->forward(norm_->forward(x)).map(ops::gelu, step));
  }

 private:
  std::unique_ptr<nn::Norm> norm_;
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::Contract> down_;
};

/// A block, written as if for one process. The sizes of rows and features are those on this rank; slots and pairs are
/// not split.
class StreamsBlock {
 public:
  StreamsBlock(const models::ModelShape& s, int64_t index, nn::Layers& make) : slots_(s.own.as<StreamsSizes>().slots) {
    const std::string name = concat("blocks.", index);
    const int64_t pair = s.own.as<StreamsSizes>().pair;
    const nn::LinearOptions plain{.bias = false, .deviation = kDeviation};
    norm_ = make.layer_norm(name + ".norm", s.hidden, {});
    qkv_ = make.heads(name + ".attention.qkv", s.attention(), plain);
    attention_ = make.attention(name + ".attention", s.attention(), {});
    out_ = make.from_heads(name + ".attention.out", s.attention(), plain);
    to_pair_ = std::make_unique<Mlp>(name + ".to_pair", s.hidden, 2 * pair, pair, make);
    of_pair_ = std::make_unique<Mlp>(name + ".of_pair", pair, 2 * pair, pair, make);
    to_hidden_ = std::make_unique<Mlp>(name + ".to_hidden", pair, 2 * pair, s.hidden, make);
    of_hidden_ = std::make_unique<Mlp>(name + ".of_hidden", s.hidden, s.ffn, s.hidden, make);
    if (index != s.layers / 2) return;
    distance_ = make.outputs(name + ".distance", pair, 1, {.deviation = kDeviation});
    rows_of_ = make.field_part();
    loss_ = make.reports().add_loss({.name = name + ".distance", .weight = 0.1, .over = nn::Over::Mean});
  }

  void forward(models::States& states, const nn::ForwardContext& step) const {
    at::Tensor &hidden = states[kHidden], &pair = states[kPair];
    nn::Heads heads = qkv_->forward(norm_->forward(hidden), step);
    hidden = hidden + out_->forward(attention_->forward(heads, step), step);

    const at::Tensor slots = to_pair_->forward(slots_before(hidden), step);  // [B, N, P]
    pair = pair + slots.unsqueeze(2) + slots.unsqueeze(1);
    pair = pair + of_pair_->forward(pair.flatten(1, 2), step).unflatten(1, {slots_, slots_});

    hidden = hidden + of_slots(to_hidden_->forward(pairs_before(pair), step), hidden);
    hidden = hidden + of_hidden_->forward(hidden, step);
    // The loss term is attached to the state that all later blocks read, because backward always passes through it.
    if (distance_ && step.training) hidden = step.attach_loss(loss_, distance_loss(pair, step), hidden);
  }

 private:
  /// Returns for each slot the mean of the tokens of the slot before it, zeros for the first: [B, S, H] -> [B, N, H].
  at::Tensor slots_before(const at::Tensor& hidden) const {
    const at::Tensor means = hidden.unflatten(1, {slots_, -1}).mean(2);
    return at::cat({at::zeros_like(means.narrow(1, 0, 1)), means.narrow(1, 0, slots_ - 1)}, 1);
  }
  /// Returns for each slot the mean of its pairs with itself and the slots before it: [B, N, N, P] -> [B, N, P].
  at::Tensor pairs_before(const at::Tensor& pair) const {
    const at::Tensor seen = at::ones({slots_, slots_}, pair.options()).tril();
    return (pair * (seen / seen.sum(1, true)).unsqueeze(-1)).sum(2);
  }
  /// Returns for each token the vector of its slot: [B, N, H] -> [B, S, H].
  at::Tensor of_slots(const at::Tensor& slots, const at::Tensor& hidden) const {
    return slots.unsqueeze(2).expand({-1, -1, hidden.size(1) / slots_, -1}).flatten(1, 2);
  }

  /// Returns the mean squared error of the predicted distances, over this rank's rows, as a scalar.
  at::Tensor distance_loss(const at::Tensor& pair, const nn::ForwardContext& step) const {
    using tensor::Dim;
    const at::Tensor all = distance_->forward(pair.flatten(1, 2), step);  // [B, N * N, 1] of all rows, on every rank
    const at::Tensor own = rows_of_({all, {Dim::Row, Dim::Other, Dim::Other}}, step);
    const at::Tensor slots = at::arange(slots_, own.options());
    const at::Tensor distances = (slots.unsqueeze(1) - slots).square().log1p().view({1, -1, 1});
    return (own - distances).square().mean().to(at::promote_types(own.scalar_type(), at::kFloat));
  }

  int64_t slots_;
  std::unique_ptr<nn::Norm> norm_;
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::Attention> attention_;
  std::unique_ptr<nn::OutputProjection> out_;
  std::unique_ptr<Mlp> to_pair_, of_pair_, to_hidden_, of_hidden_;
  std::unique_ptr<nn::Outputs> distance_;  // null = this block has no loss term
  nn::FieldPart rows_of_;
  nn::Report loss_;
};

models::State pair_state(const StreamsSizes& own) {
  using tensor::Dim;
  return {.name = "pair",
          .dims = {Dim::Row, Dim::Other, Dim::Other, Dim::Feature},
          .sizes = [own](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
            return {step.batch->rows(), own.slots, own.slots, own.pair};
          }};
}

models::Embed make_embedding(const models::ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<StreamsSizes>();
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, kDeviation);
  std::shared_ptr<nn::Embedding> positions = layers.positions("positions", s.positions, s.hidden, kDeviation);
  std::shared_ptr<nn::Embedding> pairs =
      layers.positions("pair_positions", own.slots * own.slots, own.pair, kDeviation);
  const auto embed = [=](models::States& states, const tensor::Batch& batch, const nn::ForwardContext& step) {
    const at::Tensor& ids = batch.at("ids");
    require(nn::cache_of(step) == nullptr, "model",
            "a model of streams reads whole rows: got a cache; it does not generate");
    require(ids.size(1) % own.slots == 0, "model", "the tokens of a row must be divisible by the ", own.slots,
            " slots: got ", ids.size(1), "; change data.sequence or model.slots");
    states[kHidden] = tokens->forward(ids, step) + positions->forward(step.positions, step);
    const int64_t count = own.slots * own.slots;
    const at::Tensor where = at::arange(count, ids.options()).expand({ids.size(0), count});
    states[kPair] = pairs->forward(where, step).unflatten(1, {own.slots, own.slots});
  };
  return {{kHidden, kPair}, embed};
}

models::Model make(const models::ModelShape& s, nn::Layers& layers) {
  require(!layers.splits_tokens(), "parallel",
          "a model of streams must have all tokens of a row on one rank: got a layout that splits tokens; leave out "
          "parallel.sequence and parallel.tensor.sequence");
  models::Model model;
  model.fields = {"ids", "positions"};
  model.states = {models::hidden_state(s.hidden, s.positions), pair_state(s.own.as<StreamsSizes>())};
  model.embed = make_embedding(s, layers);
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto block = std::make_shared<const StreamsBlock>(s, i, layers);
    const auto run = [block](models::States& states, const nn::ForwardContext& step) { block->forward(states, step); };
    model.blocks.push_back({{kHidden, kPair}, {kHidden, kPair}, run});
  }
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
  model.norm = [norm](const at::Tensor& x, const nn::ForwardContext&) { return norm->forward(x); };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary, {.deviation = kDeviation});
  return model;
}

void settle(models::ModelShape& s) {
  require(s.dropout == 0, "model", "a model of streams has no dropout: got ", s.dropout, "; set model.dropout = 0");
}

}  // namespace

models::Architecture streams_architecture() {
  const models::ModelShape tiny{.vocabulary = 257,
                                .hidden = 48,
                                .layers = 4,
                                .heads = 4,
                                .kv_heads = 4,
                                .head_dim = 12,
                                .ffn = 96,
                                .positions = 64,
                                .tied = false};
  return {
      .name = "streams", .own = StreamsSizes{}, .presets = {{"streams-tiny", tiny}}, .make = make, .settle = settle};
}
