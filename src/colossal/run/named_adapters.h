// Adapters that are loaded in addition to the weights of one base, so that each request of an engine may choose one by
// name.
//
//   const auto adapters = run::read_named_adapters({{.name = "poet", .folder = "adapters/poet"}}, about, mesh);
//   options.products.push_back(...);                         // as nn/token_adapters.h says
#pragma once
#include <memory>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/nn/token_adapters.h"
#include "colossal/run/adapter_choice.h"
#include "colossal/run/model_source.h"

namespace colossal::run {

/// Reads the adapters for the base `about`, whole on the host of each rank. The number of an adapter is its index in
/// `choices`. Collective among all ranks of `mesh`, which agree on errors.
/// Errors ("adapter"): two of the same name, or one without a name; adapters of another base; those that cannot be
///                     chosen by request: magnitudes (DoRA), adapters of experts, and modules that were trained
///                     whole. Errors of
///                     open_adapters() and read_adapters().
std::unique_ptr<nn::TokenAdapters> read_named_adapters(const std::vector<AdapterChoice>& choices,
                                                       const ModelSource& about, comm::Mesh& mesh);

}  // namespace colossal::run
