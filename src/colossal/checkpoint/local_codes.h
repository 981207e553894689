// A rank's part of a parameter in the codes that a folder stores.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/external_part.h"
#include "colossal/checkpoint/weight_source.h"

namespace colossal::checkpoint {

/// A part of a parameter, and the tensor of the folder that holds it.
struct PartSource {
  const ExternalPart* part;
  std::string name;  ///< in this folder
};

/// Returns the quantized values of `value`, a whole local matrix, from the tensors that `sources` name; padding has
/// scales of 0. Returns nothing if a tensor is not quantized, or has another form than the others. Also returns nothing
/// if a block begins or ends within a group of inputs, in the folder or here.
/// Errors: those of WeightSource::codes(); Error("quantization", ...) if quantized values have another shape than the
/// part.
std::optional<ops::GroupCodes> local_codes(const std::vector<const PartSource*>& sources, const WeightSource& files,
                                           const NamedTensor& value, const tensor::Place& place);

}  // namespace colossal::checkpoint
