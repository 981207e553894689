#include "colossal/run/average_weights.h"

#include <exception>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/optim/average.h"

namespace colossal::run {
namespace {

constexpr std::string_view kMain = "model.";  // prefix of the main model in checkpoints, without a name elsewhere

}  // namespace

double average_decay_of(const std::string& checkpoint) {
  try {
    return checkpoint::read_progress(checkpoint).value(kAverageDecay, 0.0);
  } catch (const std::exception&) {
    return 0;
  }
}

std::string average_name(const std::string& saved) {
  return concat(kOptimizerPrefix, optim::kAverage, ".", saved.starts_with(kMain) ? saved.substr(kMain.size()) : saved);
}

checkpoint::Substitutes averages_in(const std::string& checkpoint, bool uses_average,
                                    const checkpoint::TrainingState& state) {
  checkpoint::Substitutes averages;
  if (!uses_average || average_decay_of(checkpoint) == 0) return averages;
  for (const checkpoint::NamedTensor& tensor : state.tensors)
    averages.preferred[tensor.name] = average_name(tensor.name);
  return averages;
}

checkpoint::Substitutes beginnings_of_averages(const checkpoint::TrainingState& state) {
  checkpoint::Substitutes beginnings;
  for (const checkpoint::NamedTensor& tensor : state.tensors)
    beginnings.fallback[average_name(tensor.name)] = tensor.name;
  return beginnings;
}

std::set<std::string> names_of_averages(const checkpoint::TrainingState& state) {
  std::set<std::string> names;
  for (const checkpoint::NamedTensor& tensor : state.tensors) names.insert(average_name(tensor.name));
  return names;
}

std::string notice_of_average(double decay) {
  return concat("uses the average of the weights (training.ema = ", decay, "); --no-ema takes the last ones");
}

}  // namespace colossal::run
