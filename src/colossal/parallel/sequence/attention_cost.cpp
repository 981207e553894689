#include "colossal/parallel/sequence/attention_cost.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <type_traits>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/account.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/tensor/flops.h"

namespace colossal::parallel {
namespace {

constexpr double kElementBytes = 4, kIndexBytes = 8;

/// The heads that rank `index` of `count` ranks computes; these ranks exchange tokens for heads.
struct HeadsComputed {
  HeadsComputed(const AttentionSizes& s, int64_t index, int64_t count) : q(s.heads / count) {
    const int64_t first = index * q, group = s.heads / s.kv_heads;
    arriving = (first + q - 1) / group - first / group + 1;
    is_uneven = arriving > 1 && (q % group != 0 || first % group != 0);
  }
  int64_t q;         ///< number of query heads
  int64_t arriving;  ///< number of key-value heads that those read, which are sent to this rank
  bool is_uneven;    ///< true if some are read by more query heads than others; one copy is then made for each query
                     ///< head
  int64_t kv() const { return is_uneven ? q : arriving; }
};

/// Returns the number of tokens of group `index` if the ranks of a cut form `parts` equal groups.
double tokens_held(const nn::SequenceCut& cut, int64_t index, int64_t parts) {
  const auto each = static_cast<int64_t>(cut.held.size()) / parts;
  int64_t tokens = 0;
  for (int64_t rank = index * each; rank < (index + 1) * each; ++rank)
    for (const int64_t run : cut.held.at(static_cast<size_t>(rank))) tokens += cut.lengths.at(static_cast<size_t>(run));
  return static_cast<double>(tokens);
}

double longest_held(const nn::SequenceCut& cut, int64_t parts) {
  double longest = 0;
  for (int64_t index = 0; index < parts; ++index) longest = std::max(longest, tokens_held(cut, index, parts));
  return longest;
}

/// Returns the bytes of `heads` heads of `tokens` in every row.
double bytes_of_heads(const AttentionSizes& s, double tokens, int64_t heads) {
  return kElementBytes * static_cast<double>(s.batch * heads * s.head_dim) * tokens;
}

/// Returns the bytes of q, k and v, the result, and the logarithm of each query's sum.
double kept_by_attention(const AttentionSizes& s, double queries, double keys, const HeadsComputed& heads) {
  return 2 * bytes_of_heads(s, queries, heads.q) + 2 * bytes_of_heads(s, keys, heads.kv()) +
         kElementBytes * static_cast<double>(s.batch * heads.q) * queries;
}

/// Returns the bytes that the kernel of whole sequences keeps: the position of each query and the run of keys that it
/// sees, the same in all rows.
double kept_of_the_mask(double queries) { return 3 * kIndexBytes * queries; }

double operations_of(const AttentionSizes& s, const std::vector<ops::PositionRun>& queries, int64_t heads) {
  double pairs = 0;
  for (const ops::PositionRun& run : queries) {
    const auto first = static_cast<double>(run.first), size = static_cast<double>(run.size);
    pairs += size * (s.causal ? first + (size + 1) / 2 : static_cast<double>(s.tokens));
  }
  return 12 * static_cast<double>(s.batch * heads * s.head_dim) * pairs;
}

/// Returns the bytes that rank `rank` of the cut sends to and keeps from the `count` neighbours with which it
/// exchanges tokens for heads. q, k and v of its own tokens go to the ranks that have the heads; the result of its own
/// heads goes to the ranks that have the tokens. In backward the gradients go the opposite way.
AttentionCost cost_of_exchange(const AttentionSizes& s, const nn::SequenceCut& cut, int64_t rank, int64_t count) {
  if (count == 1) return {};
  const auto ranks = static_cast<int64_t>(cut.held.size());
  const int64_t first = rank - rank % count;
  const HeadsComputed here(s, rank - first, count);
  const double own = tokens_held(cut, rank, ranks);
  AttentionCost cost{.calls = 4, .activation_bytes = bytes_of_heads(s, own, s.heads)};  // bytes of the result
  for (int64_t other = first; other < first + count; ++other) {
    if (other == rank) continue;
    const HeadsComputed there(s, other - first, count);
    const double others = tokens_held(cut, other, ranks);
    cost.forward += bytes_of_heads(s, own, there.q + 2 * there.arriving) + bytes_of_heads(s, others, here.q);
    cost.backward += bytes_of_heads(s, own, there.q) + bytes_of_heads(s, others, here.q + 2 * here.arriving);
  }
  return cost;
}

/// Returns the cost of a ring of `ranks`: keys and values are sent to all others, again in backward, and their
/// gradients travel once around the ring. In a ring of nodes, each turn of the outer ring is a step between nodes, and
/// gradients reach their owner after the last one.
AttentionCost cost_of_ring(const AttentionSizes& s, const nn::SequenceCut& cut, int64_t ranks, int64_t nodes,
                           int64_t kv_heads) {
  if (ranks == 1) return {};
  const double part = 2 * bytes_of_heads(s, longest_held(cut, ranks), kv_heads);
  const auto parts = static_cast<double>(ranks - 1), gradients = static_cast<double>(nodes > 1 ? ranks : ranks - 1),
             outer = static_cast<double>(nodes > 1 ? (nodes - 1) + (nodes - 1) + nodes : 0);
  return {.forward = parts * part,
          .backward = (parts + gradients) * part,
          .between_nodes = outer * part,
          .calls = 2 * parts + 2 * (parts + gradients)};
}

}  // namespace

AttentionCost SequenceGather::cost(const SequenceConfig& c, const AttentionSizes& s, int64_t rank) {
  const nn::SequenceCut cut = sequence_cut(c, s.tokens, {});
  const double own = tokens_held(cut, rank, c.size),
               each_way =
                   static_cast<double>(c.size - 1) * 2 * bytes_of_heads(s, longest_held(cut, c.size), s.kv_heads);
  return {.forward = each_way,
          .backward = each_way,
          .calls = c.size > 1 ? 2.0 : 0.0,
          .activation_bytes = kept_by_attention(s, own, static_cast<double>(s.tokens), HeadsComputed(s, 0, 1)),
          .operations = operations_of(s, runs_of(cut, rank, c.size), s.heads)};
}

AttentionCost SequenceUlysses::cost(const SequenceConfig& c, const AttentionSizes& s, int64_t rank) {
  const nn::SequenceCut cut = sequence_cut(c, s.tokens, {});
  const HeadsComputed here(s, rank, c.size);
  const auto all = static_cast<double>(s.tokens);
  AttentionCost cost = cost_of_exchange(s, cut, rank, c.size);
  cost.activation_bytes += kept_by_attention(s, all, all, here) + kept_of_the_mask(all);
  cost.operations = operations_of(s, {{0, s.tokens}}, here.q);
  return cost;
}

// A ring is a usp whose inner groups are single ranks.
AttentionCost SequenceRing::cost(const SequenceConfig& c, const AttentionSizes& s, int64_t rank) {
  return SequenceUsp::cost(c, s, rank);
}

AttentionCost SequenceUsp::cost(const SequenceConfig& c, const AttentionSizes& s, int64_t rank) {
  const nn::SequenceCut cut = sequence_cut(c, s.tokens, {});
  const int64_t groups = c.size / c.ulysses, group = rank / c.ulysses;
  const HeadsComputed here(s, rank % c.ulysses, c.ulysses);
  const double tokens = tokens_held(cut, group, groups);
  AttentionCost cost = cost_of_exchange(s, cut, rank, c.ulysses);
  const AttentionCost ring = cost_of_ring(s, cut, groups, c.node == 0 ? groups : c.size / c.node, here.kv());
  cost.forward += ring.forward, cost.backward += ring.backward, cost.calls += ring.calls;
  if (c.node > 0) cost.between_nodes = ring.between_nodes;
  cost.activation_bytes += kept_by_attention(s, tokens, tokens, here);
  cost.operations = operations_of(s, runs_of(cut, group, groups), here.q);
  return cost;
}

AttentionCost SequenceSelfAttention::cost(const SequenceConfig& c, const AttentionSizes& s, int64_t rank) {
  const nn::SequenceCut cut = sequence_cut(c, s.tokens, {});
  const double own = tokens_held(cut, rank, c.size), others = static_cast<double>(c.size - 1),
               part = 2 * bytes_of_heads(s, longest_held(cut, c.size), s.kv_heads),  // bytes of keys and values
      weights = kElementBytes * static_cast<double>(s.batch * s.heads * s.tokens) * own;
  return {.forward = others * part,
          .backward = 2 * others * part,  // one more round of the ring, and a reduce_scatter of the gradients
          .calls = c.size > 1 ? 8 * others + 1 : 0,
          .activation_bytes = 2 * bytes_of_heads(s, own, s.heads) + 2 * bytes_of_heads(s, own, s.kv_heads) + weights,
          .operations = operations_of(s, runs_of(cut, rank, c.size), s.heads)};
}

std::vector<SequenceConfig> sequence_modes(int64_t ranks) {
  std::vector<SequenceConfig> configs;
  const auto add_with_nodes = [&](SequenceConfig config) {
    configs.push_back(config);
    for (config.node = 2; config.node <= ranks; ++config.node)
      if (ranks % config.node == 0 && config.node % config.ulysses == 0) configs.push_back(config);
  };
  for_each_sequence_mode([&](auto mode) {
    const SequenceConfig config{.size = ranks, .mode = mode.name};
    if constexpr (std::is_same_v<decltype(mode), SequenceUsp>) {
      for (int64_t inner = 2; inner < ranks; ++inner)
        if (ranks % inner == 0) add_with_nodes({.size = ranks, .mode = mode.name, .ulysses = inner});
    } else if constexpr (std::is_same_v<decltype(mode), SequenceRing>) {
      add_with_nodes(config);
    } else {
      configs.push_back(config);
    }
  });
  return configs;
}

std::string mode_name(const SequenceConfig& c) {
  return c.mode + (c.ulysses > 1 ? concat(" ulysses ", c.ulysses) : "") + (c.node > 0 ? concat(" node ", c.node) : "");
}

namespace {

void check_published(const SequenceConfig& config, const AttentionSizes& sizes) {
  check_sequence(config, sizes.tokens);
  check_heads(config, sizes.heads);
  require(sizes.kv_heads > 0 && sizes.heads % sizes.kv_heads == 0, "parallel",
          "key-value heads must divide the attention heads: got ", sizes.kv_heads, " of ", sizes.heads);
}

AttentionCost cost_by_formula(const SequenceConfig& config, const AttentionSizes& sizes, int64_t rank) {
  return with_sequence_mode(config, [&](auto mode) { return mode.cost(config, sizes, rank); });
}

}  // namespace

std::vector<AttentionCost> published_cost(const SequenceConfig& config, const AttentionSizes& sizes) {
  check_published(config, sizes);
  std::vector<AttentionCost> ranks;
  for (int64_t rank = 0; rank < config.size; ++rank) ranks.push_back(cost_by_formula(config, sizes, rank));
  return ranks;
}

AttentionCost published_cost(const SequenceConfig& config, const AttentionSizes& sizes, int64_t rank) {
  check_published(config, sizes);
  require(rank >= 0 && rank < config.size, "parallel", "rank must be in [0, ", config.size, "): got ", rank);
  return cost_by_formula(config, sizes, rank);
}

namespace {

constexpr std::chrono::minutes kPatienceWithThreads{5};  // long, because many ranks share few cores: a slow
                                                         // rank is not a stuck one

AttentionCost measure_attention(comm::World& world, const SequenceConfig& config, const AttentionSizes& s) {
  at::set_num_threads(1);
  comm::Mesh mesh(world, sequence_axes(config));
  const auto exchange = with_sequence_mode(config, [&](auto mode) { return mode.exchange(mesh, config); });
  const nn::SequenceCut cut = sequence_cut(config, s.tokens, {});
  const int64_t own = size_of(runs_of(cut, world.rank(), world.size()));
  const SequenceMask mask{{.causal = s.causal}, {}, {}};
  comm::Traffic& traffic = world.traffic();

  // Makes q, k and v require gradients without being leaves, because autograd would keep leaves alive and the account
  // would count them.
  const at::Tensor source = at::zeros({}).requires_grad_();
  const auto random = [&](int64_t heads) { return at::randn({s.batch, own, heads, s.head_dim}).add_(source); };
  const tensor::FlopCount operations;
  AttentionCost cost;
  at::Tensor y;
  {
    const comm::PhaseScope forward(traffic, comm::Phase::Forward);
    const memory::Account account;
    y = exchange->attend({random(s.heads), random(s.kv_heads), random(s.kv_heads)}, cut, mask);
    cost.activation_bytes = static_cast<double>(account.usage().total);
  }
  {
    const comm::PhaseScope backward(traffic, comm::Phase::Backward);
    y.backward(at::randn(y.sizes()));
  }
  const auto sent = traffic.total("", "", comm::Phase::Forward),
             sent_back = traffic.total("", "", comm::Phase::Backward);
  cost.forward = sent.bytes;
  cost.backward = sent_back.bytes;
  cost.between_nodes = traffic.total("outer").bytes;
  cost.calls = static_cast<double>(sent.calls + sent_back.calls);
  cost.operations = operations.total();
  return cost;
}

}  // namespace

std::vector<AttentionCost> measured_cost(const SequenceConfig& config, const AttentionSizes& sizes) {
  std::vector<AttentionCost> costs = published_cost(config, sizes);  // throws for an invalid configuration
  comm::run_ranks(
      static_cast<int>(config.size),
      [&](comm::World& world) { costs[static_cast<size_t>(world.rank())] = measure_attention(world, config, sizes); },
      {.watchdog = kPatienceWithThreads});
  return costs;
}

}  // namespace colossal::parallel
