// Where weights of a model come from that another program wrote: a table of tensors under the names of a Hugging Face
// folder.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "colossal/checkpoint/safetensors.h"
#include "colossal/ops/group_codes.h"

namespace colossal::checkpoint {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The name that a tensor has here: as given, else without `prefix`, else with it in front.
  std::optional<std::string> find(const std::string& name, const std::string& prefix) const;
  /// All tensors, by their name here, with the dtype and shape of tensor().
  const std::map<std::string, const TensorEntry*>& entries() const { return entries_; }
  /// To be read only, perhaps a view of the file. Errors: those of a damaged file.
  virtual at::Tensor tensor(const std::string& name) const = 0;
  /// The codes [out, in] that a matrix is stored as; nothing where it is none, or where GroupCodes cannot say it.
  /// Errors: as tensor().
  virtual std::optional<ops::GroupCodes> codes(const std::string&) const { return std::nullopt; }
  /// What was read of it takes no memory of this process any more.
  virtual void leave(const std::string& name) const = 0;

 protected:
  std::map<std::string, const TensorEntry*> entries_;
};

/// A Hugging Face folder (WeightFolder, with quantization_config QuantizedFolder), or a GGUF file (GgufWeights).
/// Errors: theirs.
std::unique_ptr<WeightSource> open_weights(const std::string& path);

}  // namespace colossal::checkpoint
