// The frozen matrices of a run with adapters in another format than the model's dtype, which adapter.base names or a
// quantized model.from has: QLoRA.
//
//   const run::FrozenBase base(keys, shape, {"head.weight"});         // keys.base = "nf4"
//   product = base.wrap(product, weight, parameters);                  // before nn::with_low_rank()
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/adapter.h"
#include "colossal/nn/frozen_form.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"
#include "colossal/run/low_rank_keys.h"

namespace colossal::run {

/// Stores the matrices of linear layers inside the blocks, those of experts too, in another form. It leaves out
/// matrices of which layers read rows (nn::Parameter::looked_up), and what trains.
class FrozenBase {
 public:
  /// Stores them as LowRankKeys::base says. NF4 blocks follow the matrices of the architecture's Hugging Face folder;
  /// without names there, our own. `trained`: names of parameters that train. `keys.base` is not "model".
  /// Cost: the model is declared once, without memory.
  FrozenBase(const LowRankKeys& keys, const models::ModelShape& shape, const std::set<std::string>& trained);
  /// Stores those that a folder or GGUF file has as codes as they are there, unless the adapter trains or saves them.
  /// Cost: the model is declared once, without memory; those of checkpoint::coded_matrices(). Errors: as there.
  FrozenBase(const std::string& folder, const models::ModelShape& shape, const nn::Adapter& adapter);

  /// Returns nn::with_frozen_form() of a weight that the base has, else `product`. A weight that has the format anyway,
  /// bf16 in a model of bf16, stays as it is. Errors: as with_frozen_form().
  std::shared_ptr<const nn::Product> wrap(std::shared_ptr<const nn::Product> product, const nn::Parameter& weight,
                                          nn::Parameters& parameters) const;

 private:
  std::optional<nn::FrozenOptions> options_;                       // none = the codes of a folder
  std::map<std::string, std::vector<nn::FolderMatrix>> matrices_;  // by weight
};

}  // namespace colossal::run
