// How a run changes a model that it trains: which parameters train, which of them checkpoints save, and what wraps the
// products of linear layers (nn/low_rank.h).
//
//   const nn::Adapter head_only{.treatment = [](const std::string& name) {
//     return nn::Treatment{.trains = name.starts_with("head.")};
//   }};
//   const auto engine = train::initialize(world, config, shape, {}, nullptr, head_only);
#pragma once
#include <functional>
#include <string>

#include "colossal/nn/parameter.h"

namespace colossal::nn {

/// Changes to a model; none by default. All ranks must pass the same.
struct Adapter {
  /// Decides whether a parameter trains and is saved; see Parameters::Options::treatment. Null = all train and are
  /// saved.
  std::function<Treatment(const std::string& name)> treatment{};
  /// Wraps the product of each linear layer, outside the wrapper of the precision (Parameters::Options::products); null
  /// = none.
  Parameters::Options::ProductOf product{};
};

/// Returns an adapter that freezes the whole model. Checkpoints save its parameters.
inline Adapter frozen() {
  return {.treatment = [](const std::string&) { return Treatment{.trains = false}; }};
}

}  // namespace colossal::nn
