#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>

#include "colossal/comm/run_ranks.h"
#include "colossal/memory/account.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/sequence/attention_cost.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/tensor/flops.h"

namespace colossal::parallel {
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
