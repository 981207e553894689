// The average of the weights of a run (training.ema) in its checkpoints, which readers use in place of the weights.
//
//   const double decay = run::average_decay_of(checkpoint);   // 0 = the checkpoint has no average
//   checkpoint::load(checkpoint, state, mesh.all(), mesh.coordinates(), "model.", {},
//                    run::averages_in(checkpoint, true, state));
//   if (decay > 0) notices.push_back(run::notice_of_average(decay));
#pragma once
#include <set>
#include <string>

#include "colossal/checkpoint/checkpoint.h"

namespace colossal::run {

/// Key in the progress of checkpoints that have an average: training.ema. Those from before the first update have none.
inline constexpr char kAverageDecay[] = "ema";
/// Prefix of the names of optimizer states in checkpoints.
inline constexpr char kOptimizerPrefix[] = "optimizer.";

/// Returns training.ema of the average that a checkpoint has; 0 = it has none, or its manifest cannot be read, which
/// load() reports.
double average_decay_of(const std::string& checkpoint);

/// Returns the name of the average of a parameter that checkpoints store as `saved` (nn::Parameter::saved_name()):
/// "optimizer.ema.head.weight" of "model.head.weight", "optimizer.ema.critic.head.weight" of "critic.head.weight".
std::string average_name(const std::string& saved);

/// Returns what load() reads for the weights of `state`, which have their names in checkpoints: their averages, if the
/// checkpoint has some and `uses_average` is true. What never trained has none and is read as it is: frozen parameters
/// and rows, and buffers.
checkpoint::Substitutes averages_in(const std::string& checkpoint, bool uses_average,
                                    const checkpoint::TrainingState& state);

/// Returns what load() reads for averages of `state`, the weights and states of a training, if the checkpoint is of a
/// run without an average: the weights, with which the average then begins.
checkpoint::Substitutes beginnings_of_averages(const checkpoint::TrainingState& state);

/// Returns the names of the averages of the weights of `state`, which a run without an average drops.
std::set<std::string> names_of_averages(const checkpoint::TrainingState& state);

/// Returns a line for the user of a command: the averages are used, and how to use the weights instead.
std::string notice_of_average(double decay);

}  // namespace colossal::run
