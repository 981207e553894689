// How a run changes a model that it trains: which parameters train, which of them checkpoints save, and what wraps the
// products of linear layers (nn/low_rank.h).
//
//   const nn::Adapter head_only{.treatment = [](const std::string& name) {
//     return nn::Treatment{.trains = name.starts_with("head.")};
//   }};
//   const auto engine = train::initialize(world, config, train::NamedModel{.shape = shape, .adapter = head_only});
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"

namespace colossal::nn {

/// Changes to a model; none by default. All ranks must pass the same.
struct Adapter {
  /// Decides whether a parameter trains and is saved; see Parameters::Options::treatment. Null = all train and are
  /// saved.
  std::function<Treatment(const std::string& name)> treatment{};
  /// Wraps the product of each linear layer, outside the wrapper of the precision (Parameters::Options::products); null
  /// = none. It is called for each expert of a mixture (Parameter::stack), for which with_low_rank() declares stacks;
  /// other parameters must not be declared there.
  Parameters::Options::ProductOf product{};
};

/// Returns an adapter that freezes the whole model. Checkpoints save its parameters.
inline Adapter frozen() {
  return {.treatment = [](const std::string&) { return Treatment{.trains = false}; }};
}

/// Returns a product that computes as `adapted`, or as `plain` while *off is true. Only passes without gradients may
/// switch it off. `adapted` wraps `plain`, or is the same product, which is then returned.
std::shared_ptr<const Product> with_switch(std::shared_ptr<const Product> adapted, std::shared_ptr<const Product> plain,
                                           std::shared_ptr<const bool> off);

/// Returns a notice that the experts of a mixture have no adapter, with the parameters that adapters added; nothing if
/// the model has no experts, or adapters of some. Names of blocks are joined: "blocks.*.attention.qkv.adapter_a". Call
/// it for a model that was made with Adapter::product.
std::optional<std::string> notice_of_experts(const Parameters& parameters);

}  // namespace colossal::nn
