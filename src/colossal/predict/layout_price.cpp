#include "colossal/predict/layout_price.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/models/shape_parts.h"
#include "colossal/parallel/sequence/attention_cost.h"
#include "colossal/parallel/tensor/layer_cost.h"
#include "colossal/schedule/make.h"
#include "colossal/train/memory_needs.h"

namespace colossal::predict {
namespace {

// Rough counts of a transformer block. They order layouts; the recorded steps decide.
constexpr double kOperatorsOfBlock = 80;      // operators that start, forward and backward
constexpr double kMovedOfBlock = 40;          // times that a block reads or writes its hidden states
constexpr double kSelectiveOperations = 1.2;  // operations with recomputation inside each mlp, relative to none
constexpr double kBlockOperations = 4.0 / 3;  // with recomputation of whole blocks: one more forward pass
constexpr double kHiddenGradients = 0.5;      // share of the reductions of gradients that backward hides

/// Least number of hidden states that a block keeps for backward: its input; the results of attention and of
/// projections; the inner states of its mlp, whose width of a mixture depends on the experts that a token uses.
double kept_of_block(const std::string& recompute, const models::ModelShape& shape) {
  if (recompute == "block") return 1;
  const bool is_dense = shape.part<models::MixtureSizes>().experts == 0 && shape.ffn > shape.hidden;
  const double inner = is_dense ? static_cast<double>(shape.ffn) / static_cast<double>(shape.hidden) : 1;
  return recompute == "selective" ? 2 + inner : 3 + inner;
}

double operations_factor(const std::string& recompute) {
  return recompute == "block" ? kBlockOperations : recompute == "selective" ? kSelectiveOperations : 1;
}

}  // namespace

/// Sizes of one layout that several formulas need.
struct LayoutPrices::Sizes {
  int64_t rows = 1;          // of a micro-batch and replica
  double tokens = 1;         // of these rows, on a rank of the sequence axis
  double blocks = 1;         // of a rank
  double micro_batches = 1;  // of a replica
  int64_t copies = 1;        // ranks with the same parameters
};

LayoutPrices::LayoutPrices(const LayoutSpace& space, const train::RunModels& models, const plan::Cluster& cluster)
    : space_(space), shape_(models.main().shape), cluster_(cluster), operations_(space.costs().sum()) {
  const run::Config& given = space.given();
  type_ = plan::number_type_named(given.precision.mode).value_or(plan::NumberType::Fp32);
  run::Config one = given;
  one.parallel = {};
  one.memory = {};
  one.training.accumulate = 1;
  for (const train::MemoryNeed& need : train::memory_needs({one, models}, 0)) {
    const auto bytes = static_cast<double>(need.bytes);
    (need.what == train::kFrozenParameters ? frozen_
     : need.what == "parameters"           ? parameters_
     : need.what == "gradients"            ? gradients_
                                           : states_) += bytes;
  }
}

LayoutPrice LayoutPrices::of(const Layout& layout) const {
  const run::Config& given = space_.given();
  const int64_t stages = space_.pipeline(layout).size, replicas = layout.data * space_.expert(layout).size;
  Sizes sizes;
  sizes.rows = given.training.batch_size / replicas / layout.micro_batches;
  sizes.micro_batches = layout.micro_batches;
  sizes.tokens = static_cast<double>(sizes.rows * space_.tokens()) / static_cast<double>(space_.sequence(layout).size);
  sizes.blocks = static_cast<double>(space_.costs().blocks.size()) / static_cast<double>(stages);
  sizes.copies = replicas * space_.sequence(layout).size;

  const double busy = busy_seconds(layout, sizes);
  const double parts = static_cast<double>(stages * space_.tensor(layout).size * space_.expert(layout).size);
  const int64_t sharers = layout.zero_group > 0 ? layout.zero_group : sizes.copies;
  const double zero1 = layout.zero >= 1 ? static_cast<double>(sharers) : 1,
               zero2 = layout.zero >= 2 ? static_cast<double>(sharers) : 1,
               zero3 = layout.zero >= 3 ? static_cast<double>(sharers) : 1;
  const double update = (parameters_ + gradients_ + 2 * states_) / parts / zero1;
  LayoutPrice price;
  price.seconds = busy + reduction_seconds(layout, sizes) + cluster_.elementwise_seconds(update);
  if (layout.uses_tiers) {
    price.tier_seconds = tier_seconds(parts, zero1);
    price.seconds += price.tier_seconds;
  } else {
    price.fixed_bytes = ((frozen_ + parameters_) / zero3 + gradients_ / zero2 + states_ / zero1) / parts;
  }
  const double in_flight = stages > 1 ? std::min(sizes.micro_batches, static_cast<double>(stages)) : 1;
  const std::string& recompute = space_.recomputes()[layout.recompute];
  const parallel::TensorConfig& tensor = space_.tensor(layout);
  double kept = kept_of_block(recompute, shape_) / static_cast<double>(tensor.size);
  if (tensor.sequence && tensor.keep_gathered && recompute != "block") kept += 2;  // the inputs of both halves, whole
  const double hidden_states = sizes.blocks * sizes.tokens * static_cast<double>(shape_.hidden * plan::bytes_of(type_));
  price.activation_bytes = in_flight * kept * hidden_states;
  price.bound_bytes = price.fixed_bytes + hidden_states / static_cast<double>(tensor.size);
  return price;
}

double LayoutPrices::busy_seconds(const Layout& layout, const Sizes& sizes) const {
  // Layouts that differ only in what memory they save follow one another.
  Layout same = layout;
  same.zero = same.recompute = 0;
  same.zero_group = 0;
  same.uses_tiers = false;
  if (!(same == last_) || last_busy_.empty()) last_busy_.assign(space_.recomputes().size(), -1);
  last_ = same;
  double& busy = last_busy_[static_cast<size_t>(layout.recompute)];
  if (busy >= 0) return busy;
  busy = compute_seconds(layout, sizes) + axis_seconds(layout, sizes);
  const parallel::PipelineConfig& pipeline = space_.pipeline(layout);
  if (pipeline.size == 1) return busy;
  const schedule::Family& family = schedule::find_family(pipeline.schedule);
  const int64_t chunks = pipeline.chunks > 0 ? pipeline.chunks : family.default_chunks;
  const double share = family.splits_backward ? 1.0 / 3 : 1;  // a bubble can be filled with products of weights
  busy *= 1 + share * static_cast<double>(pipeline.size - 1) / (sizes.micro_batches * static_cast<double>(chunks));
  return busy;
}

double LayoutPrices::tier_seconds(double parts, double sharers) const {
  const plan::Profile& profile = cluster_.profile();
  const double back = (parameters_ + states_) / parts / sharers, there = back + frozen_ / parts / sharers;
  const double moved = there + back;
  double seconds = profile.host.bandwidth > 0 ? cluster_.host_copy_seconds(moved) : cluster_.elementwise_seconds(moved);
  if (!space_.given().memory.disk.empty() && profile.disk.read > 0 && profile.disk.write > 0)
    seconds += cluster_.disk_read_seconds(there) + cluster_.disk_write_seconds(back);
  return seconds;
}

double LayoutPrices::compute_seconds(const Layout& layout, const Sizes& sizes) const {
  const parallel::TensorConfig& tensor = space_.tensor(layout);
  const int64_t row_parts =
      parallel::batch_parts(tensor) * (tensor.mode == "1d" ? 1 : parallel::sequence_parts(tensor));
  const int64_t m = std::max<int64_t>(1, static_cast<int64_t>(sizes.tokens) / row_parts);
  const int64_t columns = std::max<int64_t>(1, tensor.size / std::max<int64_t>(1, row_parts));
  const int64_t n = std::max<int64_t>(1, shape_.ffn / columns), k = std::max<int64_t>(1, shape_.hidden);
  const auto [at, is_new] = product_rates_.try_emplace({m, n, k}, 0);
  if (is_new) {
    const auto dm = static_cast<double>(m), dn = static_cast<double>(n), dk = static_cast<double>(k);
    at->second = cluster_.product_seconds(dm, dn, dk, type_) / (2 * dm * dn * dk);
  }
  const int64_t stages = space_.pipeline(layout).size;
  const double operations = operations_ * static_cast<double>(sizes.rows) * sizes.micro_batches /
                            static_cast<double>(stages * tensor.size * space_.sequence(layout).size) *
                            operations_factor(space_.recomputes()[layout.recompute]);
  const int64_t heads = std::max<int64_t>(1, shape_.heads), parts = parallel::head_parts(tensor);
  const double padding = static_cast<double>((heads + parts - 1) / parts * parts) / static_cast<double>(heads);
  // Between products of 1d without tensor.sequence every rank has all features of its tokens.
  const double whole = tensor.mode == "1d" && !tensor.sequence ? 0.5 : 1;
  const double divided = 1 - whole + whole / static_cast<double>(tensor.size);
  const double moved =
      kMovedOfBlock * sizes.tokens * static_cast<double>(shape_.hidden * plan::bytes_of(type_)) * divided;
  const double passes = sizes.blocks * sizes.micro_batches;
  return operations * at->second * padding +
         passes * (cluster_.elementwise_seconds(moved) + kOperatorsOfBlock * cluster_.profile().device.start);
}

LayoutPrices::AxisCost LayoutPrices::tensor_cost(const Layout& layout, const Sizes& sizes) const {
  const auto [at, is_new] = tensor_costs_.try_emplace({layout.tensor, sizes.rows}, AxisCost());
  if (!is_new) return at->second;
  const parallel::LayerSizes layer{.hidden = shape_.hidden,
                                   .heads = std::max<int64_t>(1, shape_.heads),
                                   .batch = sizes.rows,
                                   .sequence = space_.tokens()};
  const parallel::LayerCost cost = parallel::published_cost(space_.tensor(layout), layer);
  at->second = {(cost.forward + cost.backward) * static_cast<double>(plan::bytes_of(type_)), cost.calls};
  return at->second;
}

LayoutPrices::AxisCost LayoutPrices::sequence_cost(const Layout& layout, const Sizes& sizes) const {
  const parallel::TensorConfig& tensor = space_.tensor(layout);
  const int64_t parts = parallel::head_parts(tensor);
  const auto [at, is_new] = sequence_costs_.try_emplace({layout.sequence, sizes.rows, parts}, AxisCost());
  if (!is_new) return at->second;
  const int64_t kv_heads = std::max<int64_t>(1, shape_.kv_heads / parts),
                share = shape_.heads / std::max<int64_t>(1, shape_.kv_heads);
  const parallel::AttentionSizes attention{.batch = std::max<int64_t>(1, sizes.rows / parallel::batch_parts(tensor)),
                                           .tokens = space_.tokens(),
                                           .heads = kv_heads * std::max<int64_t>(1, share),
                                           .kv_heads = kv_heads,
                                           .head_dim = std::max<int64_t>(1, shape_.head_dim)};
  try {
    const parallel::AttentionCost cost = parallel::published_cost(space_.sequence(layout), attention, 0);
    at->second = {(cost.forward + cost.backward) * static_cast<double>(plan::bytes_of(type_)) / 4, cost.calls};
  } catch (const Error&) {  // the heads of a rank after padding: the recorded step decides
    at->second = {};
  }
  return at->second;
}

double LayoutPrices::group_seconds(Collective collective, double bytes, double calls, int64_t ranks,
                                   int64_t stride) const {
  if (ranks <= 1 || calls <= 0) return 0;
  const int64_t in_node = std::clamp<int64_t>(cluster_.ranks_per_node() / stride, 1, ranks);
  const plan::RankSpan span{.ranks = ranks, .nodes = (ranks + in_node - 1) / in_node};
  return calls * cluster_.collective_seconds(collective, bytes / calls, span);
}

double LayoutPrices::axis_seconds(const Layout& layout, const Sizes& sizes) const {
  const int64_t tensor = space_.tensor(layout).size, sequence = space_.sequence(layout).size,
                expert = space_.expert(layout).size, stages = space_.pipeline(layout).size;
  const double passes = sizes.blocks * sizes.micro_batches;
  const double repeats = space_.recomputes()[layout.recompute] == "block" ? 1.5 : 1;  // forward calls are repeated
  double seconds = 0;
  if (tensor > 1) {
    const AxisCost cost = tensor_cost(layout, sizes);
    seconds += passes * repeats *
               group_seconds(Collective::AllReduce, cost.bytes / static_cast<double>(sequence), cost.calls, tensor, 1);
  }
  if (sequence > 1) {
    const AxisCost cost = sequence_cost(layout, sizes);
    seconds += passes * repeats * group_seconds(Collective::AllGather, cost.bytes, cost.calls, sequence, tensor);
  }
  const double hidden = sizes.tokens * static_cast<double>(shape_.hidden * plan::bytes_of(type_));
  if (expert > 1) seconds += passes * group_seconds(Collective::AllToAll, 4 * hidden, 4, expert, tensor * sequence);
  if (stages > 1) {
    const int64_t chunks = std::max<int64_t>(1, space_.pipeline(layout).chunks);
    const double messages = 2 * sizes.micro_batches * static_cast<double>(chunks);
    seconds += group_seconds(Collective::Send, messages * hidden, messages, 2, space_.ranks() / stages);
  }
  return seconds;
}

double LayoutPrices::reduction_seconds(const Layout& layout, const Sizes& sizes) const {
  if (sizes.copies <= 1) return 0;
  const int64_t stride = space_.tensor(layout).size;
  const double parts = static_cast<double>(space_.pipeline(layout).size * stride * space_.expert(layout).size);
  const double chunk = space_.given().parallel.chunk_mib * 1048576;
  const double calls = std::ceil(gradients_ / parts / chunk);
  double seconds =
      kHiddenGradients * group_seconds(Collective::AllReduce,
                                       plan::sent_bytes(Collective::AllReduce, gradients_ / parts, sizes.copies), calls,
                                       sizes.copies, stride);
  if (layout.zero == 3) {  // parameters are gathered for each pass of each micro-batch
    const int64_t sharers = layout.zero_group > 0 ? layout.zero_group : sizes.copies;
    const double gathered = plan::sent_bytes(Collective::AllGather, (frozen_ + parameters_) / parts, sharers);
    const double gathers = std::ceil((frozen_ + gradients_) / parts / chunk);
    seconds += 2 * sizes.micro_batches * group_seconds(Collective::AllGather, gathered, gathers, sharers, stride) *
               kHiddenGradients;
  }
  return seconds;
}

}  // namespace colossal::predict
