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

/// Of `value`, a whole local matrix, what `sources` store: padding has scales of 0. Nothing: one of them is not in
/// codes or in another form than the others, or blocks begin or end within a group of inputs, in the folder or here.
/// Errors: those of WeightSource::codes(); Error("quantization", ...) of codes in another shape than the part's.
std::optional<ops::GroupCodes> local_codes(const std::vector<const PartSource*>& sources, const WeightSource& files,
                                           const NamedTensor& value, const tensor::Place& place);

}  // namespace colossal::checkpoint
