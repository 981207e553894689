// Reads a rank's part of a parameter from the tensors of a folder: in the quantized form that the folder stores, or as
// rows that are read in place.
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

/// Returns tensors [rows, in] whose rows, one after the other, are those of `value`, a whole local matrix: views of the
/// tensors that `sources` name, in their dtypes. Returns none if this rank has padding or a part of the inputs, or if
/// the folder holds the transpose.
/// `entry`: if the value is a stack, the matrix with this logical index.
/// Errors: errors of WeightSource::tensor().
std::optional<std::vector<at::Tensor>> local_rows(const std::vector<const PartSource*>& sources,
                                                  const WeightSource& files, const NamedTensor& value,
                                                  const tensor::MeshCoordinates& coordinates, int64_t entry = -1);

/// Returns the values of a part in our orientation, with dimension 0.
at::Tensor read_part(const PartSource& source, const WeightSource& files);

}  // namespace colossal::checkpoint
