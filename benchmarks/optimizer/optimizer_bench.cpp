// Updates of as many fp32 parameters as GPT-2 124M has: the kernels on flat buffers against torch's and against the
// memory bandwidth of this machine, and a step of every rule on a model's matrices.
//
// Usage: colossal_optimizer_bench [threads] [rounds] [layers, 12]. One JSON object per line: what, kind, bytes of
//        memory traffic per element (0: not counted), elements, seconds. All candidates run in turns, so that they see
//        the same machine; times are the best of the rounds. benchmarks/optimizer_step.py makes a table of the output.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/ops/updates/update.h"
#include "colossal/optim/optimizer.h"

namespace ops = colossal::ops;
namespace optim = colossal::optim;
namespace memory = colossal::memory;
namespace nn = colossal::nn;
using colossal::tensor::ShardSpec;

namespace {

struct Candidate {
  std::string what, kind;
  double bytes;
  std::function<void()> work;
  double seconds = 1e30;
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The first round only touches the memory, and does not count.
void measure(std::vector<Candidate> candidates, int rounds, int64_t elements, const std::function<void()>& between) {
  for (int round = 0; round <= rounds; ++round)
    for (Candidate& candidate : candidates) {
      between();
      const double seconds = seconds_of(candidate.work);
      if (round > 0) candidate.seconds = std::min(candidate.seconds, seconds);
    }
  for (const Candidate& c : candidates)
    std::printf("{\"what\": \"%s\", \"kind\": \"%s\", \"bytes\": %.0f, \"elements\": %lld, \"seconds\": %.6f}\n",
                c.what.c_str(), c.kind.c_str(), c.bytes, static_cast<long long>(elements), c.seconds);
}

void declare_gpt2(nn::Parameters& parameters, int64_t layers) {
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    const bool is_matrix = shape.size() > 1;
    parameters.add(name, ShardSpec::whole(std::move(shape)), nn::Init::normal(0.02), is_matrix).hidden_matrix =
        is_matrix && name.starts_with("blocks.");
  };
  constexpr int64_t kHidden = 768;
  add("tokens", {50257, kHidden});
  add("positions", {1024, kHidden});
  for (int64_t i = 0; i < layers; ++i) {
    const std::string block = colossal::concat("blocks.", i, ".");
    for (const auto& [name, out, in] : {std::tuple{"qkv", 3 * kHidden, kHidden},
                                        {"out", kHidden, kHidden},
                                        {"up", 4 * kHidden, kHidden},
                                        {"down", kHidden, 4 * kHidden}}) {
      add(block + name, {out, in});
      add(block + name + ".bias", {out});
    }
    for (const char* norm : {"norm_1", "norm_2"})
      for (const char* part : {".weight", ".bias"}) add(block + norm + part, {kHidden});
  }
}

memory::Shard one_shard(nn::Parameters& parameters) {
  const int64_t total = parameters.numel();
  const at::Tensor values = at::empty({total});
  std::vector<memory::Piece> pieces;
  int64_t at = 0;
  for (nn::Parameter& p : parameters) {
    const int64_t size = p.value.numel();
    values.narrow(0, at, size).copy_(p.value.detach().view({-1}));
    pieces.push_back({&p, at, {0, size, true}});
    at += size;
  }
  const memory::Shard shard(memory::Shard::Parts::of(values), std::move(pieces));
  shard.lease()->gradients = at::randn({total});
  return shard;
}

void kernels(int64_t n, int rounds) {
  at::Tensor p = at::randn({n}), g = at::randn({n}), m = at::zeros({n}), v = at::zeros({n}), step = at::ones({});
  at::Tensor narrow = g.to(at::kBFloat16), copy = at::empty({n}, at::kBFloat16);
  const ops::AdamStep adam{.learning_rate = 1e-4, .weight_decay = 0.01};
  // A written cache line is read first, except in buffers that are updated in place: 4 bytes more than STREAM counts.
  const std::vector<Candidate> candidates{
      {"a = b + s c", "stream", 16, [&] { at::add_out(m, p, g, 0.5); }},
      {"a += s b", "stream", 12, [&] { m.add_(g, 0.5); }},
      {"a *= s", "stream", 8, [&] { m.mul_(0.5); }},
      {"AdamW", "torch", 28,
       [&] { at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, 1e-4, 0.9, 0.999, 0.01, 1e-8, false, false); }},
      {"AdamW", "ours", 28, [&] { ops::adam_({p, g}, m, v, adam); }},
      {"AdamW, bf16 gradients and copy", "ours", 30, [&] { ops::adam_({p, narrow, copy}, m, v, adam); }},
      {"SGD with momentum", "torch", 20,
       [&] { at::_fused_sgd_({p}, {g}, {m}, 0.01, 0.9, 1e-4, 0.0, false, false, false); }},
      {"SGD with momentum", "ours", 20,
       [&] { ops::sgd_({p, g}, m, {.learning_rate = 1e-4, .momentum = 0.9, .weight_decay = 0.01}); }},
      {"Lion", "ours", 20, [&] { ops::lion_({p, g}, m, {}); }},
  };
  measure(candidates, rounds, n, [&] { m.fill_(1e-3), v.fill_(1e-3); });  // never subnormal
}

/// Runs one rule after another, because their states do not fit in memory together.
void rules(nn::Parameters& parameters, int rounds) {
  colossal::comm::run_ranks(1, [&](colossal::comm::World& world) {
    colossal::comm::Mesh mesh(world, {});
    for (const std::string& name : optim::rule_names()) {
      std::vector<memory::Shard> shards{one_shard(parameters)};  // the shards hold the states
      optim::OptimizerConfig config;
      config.name = name;
      const auto optimizer = optim::make_optimizer(config, shards, {parameters, mesh});
      int64_t step = 0;
      const auto work = [&] { optimizer->step(++step, 1e-4, 1); };
      measure({{name, "rule", 0, work}}, rounds, parameters.numel(), [] {});
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  nn::Parameters parameters({}, {});
  declare_gpt2(parameters, argc > 3 ? std::atoll(argv[3]) : 12);
  kernels(parameters.numel(), rounds);
  rules(parameters, rounds);
}
