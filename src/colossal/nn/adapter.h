// How a run changes a model that it trains: which parameters train, and which checkpoints keep.
//
//   const nn::Adapter head_only{.treatment = [](const std::string& name) {
//     return nn::Treatment{.trains = name.starts_with("head.")};
//   }};
//   const auto engine = train::initialize(world, config, shape, {}, head_only);
#pragma once
#include <functional>
#include <string>

#include "colossal/nn/parameter.h"

namespace colossal::nn {

/// Changes nothing by default. All ranks must pass the same.
struct Adapter {
  /// Parameters::Options::treatment.
  std::function<Treatment(const std::string& name)> treatment{};
};

}  // namespace colossal::nn
