// How a run changes a model that it trains: which parameters train, which checkpoints keep, and what wraps the products
// of linear layers (nn/low_rank.h).
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

/// Changes nothing by default. All ranks must pass the same.
struct Adapter {
  /// Parameters::Options::treatment.
  std::function<Treatment(const std::string& name)> treatment{};
  /// One of Parameters::Options::products, around those of the precision; null: none.
  Parameters::Options::ProductOf product{};
};

/// Freezes the whole model. Checkpoints hold it.
inline Adapter frozen() {
  return {.treatment = [](const std::string&) { return Treatment{.trains = false}; }};
}

}  // namespace colossal::nn
