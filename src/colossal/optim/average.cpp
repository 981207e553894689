#include "colossal/optim/average.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/optim/shard_states.h"

namespace colossal::optim {
namespace {

constexpr int64_t kSlice = int64_t{1} << 22;  // elements whose change is in memory at one time

at::ScalarType average_dtype(const memory::Shard& shard) {
  const auto dtype = shard.options().dtype().toScalarType();
  return dtype == at::kBFloat16 ? at::kFloat : dtype;
}

/// Adds `mix` times the difference to the average. Every operator rounds once, so no result depends on where a slice, a
/// shard or a vector of the processor begins. With a mix of 1 it is the values themselves.
void move_average(const at::Tensor& average, const at::Tensor& values, double mix) {
  for (int64_t first = 0; first < average.numel(); first += kSlice) {
    const int64_t size = std::min(kSlice, average.numel() - first);
    at::Tensor mean = average.narrow(0, first, size);
    const at::Tensor value = values.narrow(0, first, size);
    if (mix == 1)
      mean.copy_(value);
    else
      mean.add_(value.to(mean.scalar_type()).sub(mean).mul_(mix));
  }
}

class AveragingOptimizer : public Optimizer {
 public:
  AveragingOptimizer(std::vector<memory::Shard>& shards, double decay) : shards_(shards), decay_(decay) {
    for (const memory::Shard& shard : shards)
      place_ = shard.add_state(at::zeros({shard.length()}, shard.options().dtype(average_dtype(shard))));
  }
  /// Sets the optimizer that trains. It adds its states after the average, which so has one place in every shard.
  void set_rule(std::unique_ptr<Optimizer> rule) { rule_ = std::move(rule); }

  void step(int64_t step, double learning_rate, double gradient_scale) override {
    rule_->step(step, learning_rate, gradient_scale);
    const at::NoGradGuard no_grad;
    const double mix = 1 - average_decay(decay_, step);
    memory::for_leases(shards_, {.values = Access::Read, .states = Access::Write, .places = {place_, place_ + 1}},
                       [&](size_t, memory::Resident& shard) {
                         for (const memory::Piece& piece : shard.pieces)
                           move_average(of_piece(shard.states[place_], piece), of_piece(shard.values, piece), mix);
                       });
  }
  bool communicates() const override { return rule_->communicates(); }
  std::vector<StateTensor> state() override {
    std::vector<StateTensor> tensors = rule_->state();
    for (const memory::Shard& shard : shards_)
      for (const memory::Piece& piece : shard.pieces())
        tensors.push_back(state_of_piece(
            kAverage, stored_state(shard, place_, average_dtype(shard), piece.offset, piece.part.size), piece));
    return tensors;
  }
  Takes takes() const override { return rule_->takes(); }
  bool takes_shards_on(at::Device device) const override { return rule_->takes_shards_on(device); }

 private:
  std::vector<memory::Shard>& shards_;
  double decay_;
  size_t place_ = 0;  // place of the average among the states of every shard
  std::unique_ptr<Optimizer> rule_;
};

}  // namespace

double average_decay(double decay, int64_t step) {
  if (step <= 1) return 0;
  const auto k = static_cast<double>(step - 1);
  return std::min(decay, (1 + k) / (10 + k));
}

std::unique_ptr<Optimizer> make_averaging_optimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                                    const LogicalTensors& tensors, double decay) {
  require(decay >= 0 && decay < 1, "optimizer", "the decay of an average must be in [0, 1): got ", decay,
          "; 0 = no average");
  if (decay == 0) return make_optimizer(config, shards, tensors);
  auto averaging = std::make_unique<AveragingOptimizer>(shards, decay);
  averaging->set_rule(make_optimizer(config, shards, tensors));
  return averaging;
}

double average_bytes(double value_bytes) {
  return std::max(value_bytes, static_cast<double>(c10::elementSize(at::kFloat)));
}

}  // namespace colossal::optim
