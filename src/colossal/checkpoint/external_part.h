// One tensor of a Hugging Face folder as a piece of one of our parameters.
#pragma once
#include <string>
#include <vector>

#include "colossal/checkpoint/box.h"
#include "colossal/nn/parameter.h"

namespace colossal::checkpoint {

struct ExternalPart {
  const nn::Parameter* parameter;
  std::string name;  ///< in the folder
  Box box;           ///< of the logical parameter
  bool transposed;   ///< the folder holds the transpose of the box

  std::vector<int64_t> external_shape() const;
  /// From the folder's orientation to ours, or back.
  at::Tensor flipped(const at::Tensor& tensor) const;
};

/// Every tensor of the folder, in the order of `names`.
/// Errors: throws Error("hugging face", ...) when a parameter has no name or two, a name is of no parameter, or the
///         number of parts is not that of the parameter's segments.
std::vector<ExternalPart> external_parts(const nn::Parameters& parameters, const std::vector<nn::ExternalName>& names);

}  // namespace colossal::checkpoint
