// An exponential moving average (EMA) of the weights beside the optimizer that trains them.
//
//   const auto optimizer = optim::make_averaging_optimizer(config, store.shards(), {parameters, mesh}, 0.9999);
//   optimizer->step(++step, rate, 1.0);   // updates the weights as make_optimizer(config, ...) does, then the average
//   optimizer->state();                   // with "ema.blocks.0.mlp.up.weight" for each parameter that trains
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/optim/optimizer.h"

namespace colossal::optim {

/// Kind of the states that are averages: their names are "ema.<parameter>".
inline constexpr char kAverage[] = "ema";

/// Returns the share of the average that a step keeps: min(decay, (1 + k) / (10 + k)) with k = step - 1, and 0 in step
/// 1, so that the average begins with the first updated weights and follows them closely at first. `step` counts from
/// 1. It is the warm-up of EMAModel in diffusers.
double average_decay(double decay, int64_t step);

/// Makes the optimizer of `config` with an average of the values that it updates (Polyak and Juditsky 1992). After each
/// of its steps:
///
///   average += (1 - average_decay(decay, step)) (value - average)
///
/// `decay` is in [0, 1); 0 = there is no average, and the result is that of make_optimizer().
///
/// State:  one more per element that trains, sharded as the values are. Its dtype is that of the values (of the master
///         weights, if there are some), but fp32 for bf16, which would round small changes of the average away.
/// Cost:   a pass over values and averages after each step; shards that are on a disk are read once more for it. The
///         values and the states of the rule are bitwise those without an average, and the average is bitwise the same
///         under every sharding. Memory: the change of 2^22 elements at a time. No communication.
/// Errors: as make_optimizer(); ("optimizer") a decay outside of [0, 1).
std::unique_ptr<Optimizer> make_averaging_optimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                                    const LogicalTensors& tensors, double decay);

/// Returns the bytes of an average per element of values of `value_bytes`.
double average_bytes(double value_bytes);

}  // namespace colossal::optim
