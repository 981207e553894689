#include "colossal/cli/bench/expert_layer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <numeric>
#include <random>
#include <span>

#include "colossal/base/error.h"
#include "colossal/comm/decorators/recording.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/model.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/reports.h"
#include "colossal/ops/activation.h"
#include "colossal/parallel/expert/config.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "colossal/train/step_reports.h"

namespace colossal::cli {
namespace {

constexpr std::chrono::minutes kExpertPatience{5};  // many ranks share few cores here: a slow rank is not stuck
constexpr const char* kExpertLayer = "blocks.0.mlp";
constexpr double kBalanceLoss = 0.01;  // the default of model.experts

/// Returns a tensor of random integers in [-bound, bound], times `unit`. The standard fixes the generator, so the
/// values are the same on every machine.
at::Tensor multiples(at::IntArrayRef sizes, uint64_t bound, double unit, uint64_t seed) {
  std::mt19937_64 random(seed);
  at::Tensor x = at::empty(sizes, at::kFloat);
  const std::span<float> values(x.data_ptr<float>(), static_cast<size_t>(x.numel()));
  for (float& value : values) {
    const auto drawn = static_cast<double>((random() >> 32) % (2 * bound + 1));
    value = static_cast<float>((drawn - static_cast<double>(bound)) * unit);
  }
  return x;
}

parallel::Layout layout_of_experts(comm::Mesh& mesh, int64_t node) {
  parallel::Layout layout = parallel::make_layout({}, mesh);
  layout.expert_node = node;
  return layout;
}

/// A model of one block: the layer of a rank with its reports. Blocks are recomputed as in a run.
class LayerOfRank {
 public:
  LayerOfRank(comm::Mesh& mesh, const ExpertWorkload& work, const ExactInputs& inputs)
      : parameters_(mesh.coordinates(), {}), layers_(parameters_, layout_of_experts(mesh, work.node)) {
    layer_ = layers_.experts(kExpertLayer, work.hidden,
                             {.count = work.experts,
                              .used = work.used,
                              .ffn = work.ffn,
                              .balance_loss = kBalanceLoss,
                              .activation = ops::activation("silu").gated,
                              .gated = true});
    {
      const at::NoGradGuard no_gradient;
      parameters_.at(concat(kExpertLayer, ".router.weight")).value.copy_(inputs.router);
    }
    model_.blocks.push_back(
        [this](const at::Tensor& x, const nn::ForwardContext& step) { return layer_->forward(x, step); });
    model_.end_step = [this](const nn::Reported& reported, std::vector<Metric>&) {
      metrics = {};
      layer_->end_step(reported, metrics);
    };
    model_.reports = layers_.reports();
  }

  /// Runs forward and backward.
  void run(const at::Tensor& x, nn::ForwardContext step, train::StepReports& reports) const {
    reports.begin_step();
    reports.begin_pass(1);
    step.parts.set(nn::ReportsOfStep{reports.accumulator()});
    const models::Stage block{.first = 0, .last = 1, .embeds = false, .ends = false};
    const at::Tensor y = models::run_stage(model_, block, {x}, step)[0];
    y.backward(at::ones_like(y));
  }

  const models::Model& model() const { return model_; }
  nn::ExpertMetrics metrics;  // metrics of the last step that ended

 private:
  nn::Parameters parameters_;
  parallel::TensorLayers layers_;
  std::unique_ptr<nn::Experts> layer_;
  models::Model model_;
};

/// Adds the payload of the calls to `cost`.
void add_calls(const std::vector<comm::RecordedCall>& calls, int64_t hidden, ExpertLayerCost& cost) {
  for (const comm::RecordedCall& call : calls) {
    const auto elements = static_cast<int64_t>(call.sent.elements);
    const bool is_all_to_all = call.collective == comm::Collective::AllToAll;
    if (!at::isFloatingType(call.dtype))
      cost.counts += elements;
    else if (is_all_to_all && call.in_sizes.size() == 2 && call.in_sizes[1] == hidden)
      cost.sent += elements;
    else if (call.collective == comm::Collective::AllReduce)
      cost.sums += elements;
    else
      cost.other += elements;
  }
  cost.calls = std::max(cost.calls, static_cast<int64_t>(calls.size()));
}

struct RankRecord {
  std::vector<comm::RecordedCall> calls;
  std::vector<double> seconds;  // one entry per round
  nn::ExpertMetrics metrics;
};

RankRecord run_rank(comm::World& world, const ExpertWorkload& work, const ExactInputs& inputs,
                    nn::Recompute recompute) {
  at::set_num_threads(1);
  comm::RecordingWorld recorded(world);
  comm::Mesh mesh(recorded, {comm::Mesh::batch("expert", world.size())});
  LayerOfRank layer(mesh, work, inputs);
  train::StepReports reports(layer.model(), at::kCPU);
  const int64_t rows = work.batch / world.size(), first_row = rows * world.rank();
  const at::Tensor x = inputs.x.narrow(0, first_row, rows).clone().requires_grad_();
  nn::ForwardContext step;
  step.training = true;
  step.recompute = recompute;
  step.first_row = first_row;

  RankRecord record;
  recorded.clear();
  layer.run(x, step, reports);
  record.calls = recorded.calls();
  std::vector<double> values;
  for (const at::Tensor& numbers : reports.numbers()) {
    const at::Tensor all = numbers.to(at::kDouble).contiguous();
    values.insert(values.end(), all.data_ptr<double>(), all.data_ptr<double>() + all.numel());
  }
  reports.end_pass(values, 1);
  reports.end_step(mesh.all(), /*skipped=*/false);
  record.metrics = layer.metrics;
  for (int64_t round = 0; round < work.rounds; ++round) {
    mesh.all().barrier().wait();
    const auto start = std::chrono::steady_clock::now();
    layer.run(x, step, reports);
    record.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return record;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

// A logit is a sum of `hidden` products of multiples of 1/4 and of 2^-(e + 2), where 2^e <= sqrt(hidden). Its magnitude
// is at most 2 hidden / 2^e < 2^(e + 3), and its unit is 2^-(e + 4). So it has at most 2 e + 7 bits: 23 of fp32's 24 at
// hidden = 2^16. Its deviation is about 1 for every `hidden`, so that softmax keeps all scores apart.
ExactInputs::ExactInputs(const ExpertWorkload& work)
    : x(multiples({work.batch, work.sequence, work.hidden}, 4, 0.25, 1)),
      router(multiples({work.experts, work.hidden}, 8,
                       std::ldexp(1.0, -std::ilogb(std::sqrt(static_cast<double>(work.hidden))) - 2), 2)) {}

std::vector<int64_t> chosen_experts(const ExactInputs& inputs, int64_t used) {
  const int64_t hidden = inputs.router.size(1), experts = inputs.router.size(0), tokens = inputs.x.numel() / hidden;
  const float *x = inputs.x.data_ptr<float>(), *router = inputs.router.data_ptr<float>();
  std::vector<int64_t> chosen;
  std::vector<double> logits(static_cast<size_t>(experts));
  std::vector<int64_t> order(static_cast<size_t>(experts));
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t expert = 0; expert < experts; ++expert)
      logits[expert] = std::inner_product(x + token * hidden, x + (token + 1) * hidden, router + expert * hidden, 0.0);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
    chosen.insert(chosen.end(), order.begin(), order.begin() + used);
  }
  return chosen;
}

ExpertLayerCost measured_expert_layer(const ExpertWorkload& work, int64_t ranks, nn::Recompute recompute) {
  require(work.used >= 1 && work.used <= work.experts, "experts",
          "the used experts must be from 1 to all experts: got ", work.used, " of ", work.experts);
  require(work.batch % ranks == 0, "experts", "the rows of a batch must be divisible by the ranks: got ", work.batch,
          " rows on ", ranks, " ranks");
  parallel::check_expert_node({.size = ranks, .node = work.node}, {});
  const ExactInputs inputs(work);
  const std::vector<int64_t> chosen = chosen_experts(inputs, work.used);
  ExpertLayerCost cost;
  cost.remote = parallel::remote_assignments(chosen, work.used, work.experts, ranks);
  if (work.node > 0) cost.node_rows = parallel::node_rows(chosen, work.used, work.experts, ranks, work.node);
  std::vector<double> slowest(static_cast<size_t>(work.rounds));
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(ranks),
                  [&](comm::World& world) {
                    const RankRecord record = run_rank(world, work, inputs, recompute);
                    const std::lock_guard lock(mutex);
                    add_calls(record.calls, work.hidden, cost);
                    for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], record.seconds[i]);
                    cost.expert_load = record.metrics.expert_load;
                    cost.rank_load = record.metrics.rank_load;
                  },
                  {.watchdog = kExpertPatience});
  cost.seconds = median(slowest);
  return cost;
}

}  // namespace colossal::cli
