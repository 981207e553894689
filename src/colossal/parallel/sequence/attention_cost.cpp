#include "colossal/parallel/sequence/attention_cost.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/account.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/tensor/flops.h"

namespace colossal::parallel {
namespace {

constexpr double kFloatBytes = 4, kBoundBytes = 3 * 8;  // of a token: which keys it sees, and where it stands

AttentionCost measure_attention(comm::World& world, const SequenceConfig& config, const AttentionSizes& s) {
  at::set_num_threads(1);
  comm::Mesh mesh(world, sequence_axes(config));
  const auto exchange = with_sequence_mode(config, [&](auto mode) { return mode.exchange(mesh, config); });
  exchange->check(s.heads, s.kv_heads);
  const nn::SequenceCut cut = sequence_cut(config, s.tokens, {});
  const int64_t own = size_of(runs_of(cut, world.rank(), world.size()));
  const auto random = [&](int64_t heads) { return at::randn({s.batch, own, heads, s.head_dim}).requires_grad_(); };
  const SequenceHeads heads{random(s.heads), random(s.kv_heads), random(s.kv_heads)};
  const at::Tensor gradient = at::randn_like(heads.q);
  AttentionCost cost;
  world.traffic().reset();
  const tensor::FlopCount operations;
  at::Tensor out;
  {
    const comm::PhaseScope forward(world.traffic(), comm::Phase::Forward);
    const memory::Account account;
    const memory::KindScope kind(memory::Kind::Activations);
    out = exchange->attend(heads, cut, {});
    cost.activation_bytes = static_cast<double>(account.usage().of(memory::Kind::Activations)) -
                            static_cast<double>(out.storage().nbytes());
  }
  {
    const comm::PhaseScope backward(world.traffic(), comm::Phase::Backward);
    out.backward(gradient);
  }
  const auto sent = world.traffic().total("", "", comm::Phase::Forward),
             sent_back = world.traffic().total("", "", comm::Phase::Backward);
  cost.forward = sent.elements, cost.backward = sent_back.elements;
  cost.calls = static_cast<double>(sent.calls + sent_back.calls);
  cost.operations = operations.total();
  return cost;
}

}  // namespace

std::vector<SequenceConfig> sequence_modes(int64_t ranks) {
  std::vector<SequenceConfig> configs;
  for (const std::string& mode : sequence_mode_names()) {
    if (mode != SequenceUsp::name)
      configs.push_back({ranks, mode});
    else if (ranks > 2 && ranks % 2 == 0)
      configs.push_back({ranks, mode, 2});
  }
  return configs;
}

std::string mode_name(const SequenceConfig& config) {
  return config.mode == SequenceUsp::name ? concat(config.mode, " of ", config.ulysses) : config.mode;
}

AttentionCost published_cost(const SequenceConfig& config, const AttentionSizes& s) {
  const double ranks = static_cast<double>(config.size), rows = static_cast<double>(s.batch),
               tokens = static_cast<double>(s.tokens), heads = static_cast<double>(s.heads),
               h = heads * static_cast<double>(s.head_dim), h_kv = static_cast<double>(s.kv_heads * s.head_dim);
  const double keys = 2 * rows * tokens * h_kv;                     // elements of all keys and values
  const double sums = kFloatBytes * rows * heads * tokens / ranks;  // a number a query and head
  const double exchanged = rows * tokens / ranks * (h + 2 * h_kv);  // q, k and v of other tokens
  AttentionCost cost{.operations = 12 * rows * h * tokens * (tokens + 1) / 2 / ranks};
  const auto ulysses = [&](double n) {
    cost.forward += (n - 1) / n * rows * tokens / ranks * (2 * h + 2 * h_kv);
    cost.backward = cost.forward;
    cost.calls += 4;
    cost.activation_bytes += kFloatBytes * exchanged;
  };
  const auto ring = [&](double n, double shares) {
    cost.forward += (n - 1) / n * keys / shares;
    cost.backward += (2 * n - 1) / n * keys / shares;
    cost.calls += 2 * (n - 1) + 2 * (2 * n - 1);
    cost.activation_bytes += sums;
  };
  if (config.mode == SequenceGather::name) {
    cost.forward = cost.backward = (ranks - 1) / ranks * keys;
    cost.calls = 2;
    cost.activation_bytes = kFloatBytes * keys + sums + kBoundBytes * tokens / ranks;
  } else if (config.mode == SequenceUlysses::name) {
    ulysses(ranks);
    cost.activation_bytes += kFloatBytes * rows * tokens / ranks * h + sums + kBoundBytes * tokens;
  } else if (config.mode == SequenceRing::name) {
    ring(ranks, 1);
  } else if (config.mode == SequenceUsp::name) {
    const double u = static_cast<double>(config.ulysses);
    ulysses(u);
    ring(ranks / u, u);
    cost.activation_bytes += kFloatBytes * rows * tokens / ranks * h;  // the result before it is exchanged
  } else {
    cost.forward = (ranks - 1) / ranks * keys;
    cost.backward = 2 * cost.forward;
    cost.calls = 8 * (ranks - 1) + 1;
    cost.activation_bytes = kFloatBytes * rows * heads * tokens / ranks * tokens;
  }
  return cost;
}

std::vector<AttentionCost> measured_cost(const SequenceConfig& config, const AttentionSizes& sizes) {
  check_sequence(config, sizes.tokens);
  std::vector<AttentionCost> costs(static_cast<size_t>(config.size));
  comm::run_ranks(
      static_cast<int>(config.size),
      [&](comm::World& world) { costs[static_cast<size_t>(world.rank())] = measure_attention(world, config, sizes); },
      {.watchdog = std::chrono::minutes(5)});  // many ranks share few cores: slow is not stuck
  return costs;
}

}  // namespace colossal::parallel
