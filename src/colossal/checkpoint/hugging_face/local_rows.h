// Finds a rank's part of a matrix in the tensors of a folder, to be read in place.
#pragma once
#include <optional>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/quantized/local_codes.h"
#include "colossal/checkpoint/weight_source.h"

namespace colossal::checkpoint {

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
