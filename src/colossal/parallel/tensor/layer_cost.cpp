#include "colossal/parallel/tensor/layer_cost.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <set>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/modes.h"
#include "colossal/parallel/tensor/tensor_layers.h"

namespace colossal::parallel {
namespace {

constexpr double kBytes = 4;  // bytes per element

/// Numbers of elements, summed over the four linear layers: inputs, weights, outputs.
struct Terms {
  explicit Terms(const LayerSizes& s)
      : state(static_cast<double>(s.batch * s.sequence * s.hidden)),
        x(7 * state),
        weight(12 * std::pow(static_cast<double>(s.hidden), 2)),
        y(9 * state) {}
  double state, x, weight, y;  // state: b * s * h
};

}  // namespace

LayerCost Mode1d::cost(const TensorConfig& c, const LayerSizes& sizes) {
  const Terms t(sizes);
  const auto p = static_cast<double>(c.size);
  const double each_way = 4 * (p - 1) / p * t.state;
  // Every rank keeps the whole input of an expand, unless it is gathered for y and again for dW.
  const bool again = c.sequence && !c.keep_gathered;
  return {.forward = each_way,
          .backward = each_way * (again ? 1.5 : 1),
          .calls = p == 1       ? 0
                   : c.sequence ? (again ? 10.0 : 8.0)
                                : 4.0,
          .parameter_bytes = kBytes * t.weight / p,
          .activation_bytes = kBytes * ((again ? 2 / p : 2) + 5 / p) * t.state};
}

// 2d is 2.5d with depth 1.
LayerCost Mode2d::cost(const TensorConfig& c, const LayerSizes& sizes) { return Mode2_5d::cost(c, sizes); }

LayerCost Mode2_5d::cost(const TensorConfig& c, const LayerSizes& sizes) {
  const Terms t(sizes);
  const auto d = static_cast<double>(c.depth);
  const double q = std::round(std::sqrt(static_cast<double>(c.size) / d));
  const double product = (q - 1) * (t.x / d + t.weight) / (q * q);
  const double sum_over_depth = 2 * (d - 1) / d * t.weight / (q * q);
  return {.forward = product,
          .backward = 2 * product + sum_over_depth,
          .calls = 24 * q + (d > 1 ? 1 : 0),
          .parameter_bytes = kBytes * t.weight / (q * q),
          .activation_bytes = kBytes * t.x / (d * q * q)};
}

LayerCost Mode3d::cost(const TensorConfig& c, const LayerSizes& sizes) {
  const Terms t(sizes);
  const double l = std::round(std::cbrt(static_cast<double>(c.size))), share = 1 / (l * l * l);
  const double each_way = (l - 1) * (t.x + t.weight + t.y) * share, again = (l - 1) * (t.x + t.weight) * share;
  return {.forward = each_way,
          .backward = each_way + (c.keep_gathered ? 0 : again),
          .calls = c.keep_gathered ? 24.0 : 32.0,
          .parameter_bytes = kBytes * t.weight * share,
          .activation_bytes = kBytes * share * (c.keep_gathered ? l * (t.x + t.weight) : t.x)};
}

void check_layer(const TensorConfig& config, const LayerSizes& sizes) {
  require(sizes.heads > 0 && sizes.hidden % sizes.heads == 0, "model", "hidden must be divisible by heads: got hidden ",
          sizes.hidden, ", heads ", sizes.heads);
  check_sizes(config, sizes.hidden, sizes.batch, sizes.sequence);
}

std::vector<TensorConfig> tensor_modes(int64_t ranks) {
  std::vector<TensorConfig> configs;
  for_each_mode([&](auto mode) {
    for (const TensorConfig& config : mode.formed_by(ranks)) configs.push_back(config);
  });
  return configs;
}

std::string mode_name(const TensorConfig& c) {
  return c.mode + (c.depth > 1 ? concat(" depth ", c.depth) : "") + (c.sequence ? " sequence" : "") +
         (c.keep_gathered ? " keep_gathered" : "");
}

LayerCost published_cost(const TensorConfig& config, const LayerSizes& sizes) {
  tensor_axes(config);  // refuses sizes that the mode does not support
  return with_mode(config, [&](auto mode) { return mode.cost(config, sizes); });
}

namespace {

constexpr std::chrono::minutes kPatience{5};  // long, because many ranks share few cores here, so slow is not stuck

struct LinearLayers {
  LinearLayers(nn::Layers& layers, const LayerSizes& s)
      : attention{s.hidden, s.heads, s.heads, s.hidden / s.heads},
        heads(layers.heads("qkv", attention, options)),
        from_heads(layers.from_heads("out", attention, options)),
        expand(layers.expand("up", s.hidden, 4 * s.hidden, options)),
        contract(layers.contract("down", 4 * s.hidden, s.hidden, options)) {}

  // q replaces the output of attention, which has the same shape.
  at::Tensor forward(const at::Tensor& x) const {
    const nn::ForwardContext step;
    return contract->forward(expand->forward(from_heads->forward({heads->forward(x, step).q.flatten(2)}, step)));
  }

  nn::AttentionShape attention;
  nn::LinearOptions options{.bias = false};
  std::unique_ptr<nn::HeadProjection> heads;
  std::unique_ptr<nn::OutputProjection> from_heads;
  std::unique_ptr<nn::Expand> expand;
  std::unique_ptr<nn::Contract> contract;
};

/// Counts the bytes that the allocator gave to this thread and that are still in use. A collective's tensors belong to
/// its caller until wait(), so no other thread frees tensors of a rank.
struct LiveBytes : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device) override { bytes += change; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t bytes = 0;
};

double bytes_of(const nn::Parameters& parameters) {
  std::set<const c10::StorageImpl*> seen;
  double bytes = 0;
  for (const nn::Parameter& p : parameters) {
    const at::Storage& storage = p.value.storage();
    if (seen.insert(storage.unsafeGetStorageImpl()).second) bytes += static_cast<double>(storage.nbytes());
  }
  return bytes;
}

using tensor::Dim;

LayerCost measure(comm::World& world, const TensorConfig& config, const LayerSizes& sizes) {
  at::set_num_threads(1);
  comm::Mesh mesh(world, tensor_axes(config));
  nn::Parameters parameters(mesh.coordinates(), {});
  const Layout layout = make_layout(config, mesh);
  TensorLayers factory(parameters, layout);
  const LinearLayers layers(factory, sizes);
  LayerCost cost{.parameter_bytes = bytes_of(parameters)};
  memory::ChunkStore store(parameters, mesh, {.capacity = std::numeric_limits<int64_t>::max()});
  GradientReducer reducer(store, {});
  comm::Traffic& traffic = world.traffic();

  // makes x require a gradient without keeping x alive, as a leaf would be
  const at::Tensor source = at::zeros({}).requires_grad_();
  const auto live = std::make_shared<LiveBytes>();
  at::Tensor y;
  {
    const comm::PhaseScope forward(traffic, comm::Phase::Forward);
    const c10::DebugInfoGuard accounting(c10::DebugInfoKind::PROFILER_STATE, live);
    y = layers.forward(at::randn(local_sizes(layout, layout.outside, {sizes.batch, sizes.sequence, sizes.hidden},
                                             {Dim::Row, Dim::Token, Dim::Feature}, sizes.sequence))
                           .add_(source));
  }
  cost.activation_bytes = static_cast<double>(live->bytes) - static_cast<double>(y.storage().nbytes());
  {
    const comm::PhaseScope backward(traffic, comm::Phase::Backward);
    reducer.begin(true);
    y.backward(at::randn(y.sizes()));
    reducer.finish();
  }
  const auto sent = traffic.total("", "", comm::Phase::Forward),
             sent_back = traffic.total("", "", comm::Phase::Backward);
  cost.forward = sent.elements;
  cost.backward = sent_back.elements;
  cost.calls = static_cast<double>(sent.calls + sent_back.calls);
  return cost;
}

}  // namespace

std::vector<LayerCost> measured_cost(const TensorConfig& config, const LayerSizes& sizes) {
  check_layer(config, sizes);
  std::vector<LayerCost> costs(static_cast<size_t>(config.size));
  comm::run_ranks(static_cast<int>(config.size),
                  [&](comm::World& world) { costs[static_cast<size_t>(world.rank())] = measure(world, config, sizes); },
                  {.watchdog = kPatience});
  return costs;
}

}  // namespace colossal::parallel
