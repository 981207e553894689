// Interface of weights that another program wrote: a table of tensors under the names of a Hugging Face folder.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/part_beside.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/ops/products/group_codes.h"
#include "colossal/ops/products/nf4_weight.h"

namespace colossal::checkpoint {

using ops::CodesForm;

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Returns the name that a tensor has here: `name`, else `name` without `prefix`, else `prefix` + `name`; none = not
  /// found.
  std::optional<std::string> find(const std::string& name, const std::string& prefix) const;
  /// All tensors by their name here, with the dtype and shape of tensor().
  const std::map<std::string, const TensorEntry*>& entries() const { return entries_; }
  /// Returns a tensor, which may be a view of the file: do not write to it. Errors: a damaged file.
  virtual at::Tensor tensor(const std::string& name) const = 0;
  /// Returns row `row` of a tensor along dimension 0, without that dimension, in the same way. Imports read the entries
  /// of stacks with it, so a source that converts whole tensors should convert one row here.
  virtual at::Tensor row(const std::string& name, int64_t row) const;
  /// Returns the quantized values [out, in] of a matrix, or none if it is not quantized or GroupCodes cannot represent
  /// it. Errors: the same as tensor().
  virtual std::optional<ops::GroupCodes> codes(const std::string&) const { return std::nullopt; }
  /// Returns a matrix [out, in] that is stored in NF4, or none if it is not. Errors: the same as tensor().
  virtual std::optional<ops::Nf4Weight> nf4(const std::string&) const { return std::nullopt; }
  /// Releases the pages of a tensor from this process's memory.
  virtual void leave(const std::string& name) const = 0;
  /// Returns true if a tensor may be read later: reading it finds no damage, and its bytes are in memory now.
  virtual bool can_wait(const std::string&) const { return false; }
  /// Returns the form of codes() or nf4() of a matrix, or none if both would return none. It reads headers, and tensors
  /// that are small beside the matrix. Codes of a damaged file, with scales that are not finite, may still be none.
  virtual std::optional<CodesForm> codes_form(const std::string&) const { return std::nullopt; }

 protected:
  std::map<std::string, const TensorEntry*> entries_;
};

/// Opens a Hugging Face folder (WeightFolder; if it has a quantization_config, QuantizedFolder or BitsandbytesFolder;
/// if it has pytorch_model.bin in place of safetensors, open_pickled_folder()), a safetensors file (WeightFolder), a
/// makers' single file or a part of one (LdmWeights), a GGUF file (GgufWeights), or a file of PyTorch or NumPy, whose
/// name has an ending of has_strided_name(): that of AlphaFold 2's weights (FoldingWeights), or any other
/// (open_strided_weights()).
/// The folder of a pipeline stands for that of its denoiser (model_folder()).
/// Errors: the errors of these classes.
std::unique_ptr<WeightSource> open_weights(const std::string& path);

/// Opens a pipeline, as the other overload does, with further parts of it. Their tensors have the name of the part, a
/// dot and the prefix before their own: "text_encoder.text_model.final_layer_norm.weight". Errors: as that one.
std::unique_ptr<WeightSource> open_weights(const std::string& path, const std::vector<PartBeside>& beside);

/// Returns a source of tensors that are in memory.
std::unique_ptr<WeightSource> weights_in_memory(const std::map<std::string, at::Tensor>& tensors);

}  // namespace colossal::checkpoint
