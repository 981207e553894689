// The frozen matrices of a run with adapters in another format than the model's dtype (adapter.base): QLoRA.
//
//   const run::FrozenBase base(keys, shape, {"head.weight"});         // keys.base = "nf4"
//   product = base.wrap(product, weight, parameters);                  // before nn::with_low_rank()
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/frozen_form.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"
#include "colossal/run/low_rank_keys.h"

namespace colossal::run {

/// Stores the matrices of linear layers inside the blocks as LowRankKeys::base says. It leaves out experts, matrices of
/// which layers read rows (nn::Parameter::looked_up), and what trains. NF4 blocks follow the matrices of the
/// architecture's Hugging Face folder; without names there, our own.
class FrozenBase {
 public:
  /// `trained`: names of parameters that train. `keys.base` is not "model". Cost: the model is declared once, without
  /// memory.
  FrozenBase(const LowRankKeys& keys, const models::ModelShape& shape, const std::set<std::string>& trained);

  /// Returns nn::with_frozen_form() of a weight that the base has, else `product`. A weight that has the format anyway,
  /// bf16 in a model of bf16, stays as it is. Errors: as with_frozen_form().
  std::shared_ptr<const nn::Product> wrap(std::shared_ptr<const nn::Product> product, const nn::Parameter& weight,
                                          nn::Parameters& parameters) const;

 private:
  nn::FrozenOptions options_;
  std::map<std::string, std::vector<nn::FolderMatrix>> matrices_;  // by weight
};

}  // namespace colossal::run
