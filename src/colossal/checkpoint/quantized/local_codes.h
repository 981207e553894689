// Reads a rank's part of a parameter in the quantized form that a folder stores.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/checkpoint/weight_source.h"

namespace colossal::checkpoint {

/// A part of a parameter, and the tensor of the folder that holds it.
struct PartSource {
  const ExternalPart* part;
  std::string name;  ///< name in this folder
};

/// Returns the quantized values of `value`, a whole local matrix, from the tensors that `sources` name; padding has
/// scales of 0. Returns none if a tensor is not quantized or tensors have different forms. Returns none if a block
/// starts or ends within a group of inputs, in the folder or on this rank.
/// `entry`: if the value is a stack whose entries the folder stores separately, the matrix with this logical index.
/// Errors: errors of WeightSource::codes(); Error("quantization", ...) if quantized values have another shape than the
///         part.
std::optional<ops::GroupCodes> local_codes(const std::vector<const PartSource*>& sources, const WeightSource& files,
                                           const NamedTensor& value, const tensor::MeshCoordinates& coordinates,
                                           int64_t entry = -1);

/// Returns the logical indices of the entries of a stack that this rank holds, in ascending order.
std::vector<int64_t> local_entries(const NamedTensor& stack, const tensor::MeshCoordinates& coordinates);

}  // namespace colossal::checkpoint
