// One tensor of a Hugging Face folder as a piece of one of our parameters.
#pragma once
#include <string>
#include <vector>

#include "colossal/checkpoint/box.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/parameter.h"

namespace colossal::checkpoint {

struct ExternalPart {
  const nn::Parameter* parameter;
  std::string name;          ///< in the folder
  Box box;                   ///< of the logical parameter
  bool transposed;           ///< the folder holds the transpose of the box
  int64_t leading_ones = 0;  ///< dimensions of size 1 in front of it there

  std::vector<int64_t> external_shape() const;
  /// The folder's tensor in the shape of the box, and back: views.
  at::Tensor to_ours(const at::Tensor& tensor) const;
  at::Tensor to_theirs(const at::Tensor& tensor) const;
};

/// Every tensor of the folder, in the order of `names`, those of other stages of a pipeline included.
/// Errors: throws Error("hugging face", ...) when a parameter has no name or two, a name is of no parameter, or the
///         number of parts is not that of the parameter's segments.
std::vector<ExternalPart> external_parts(const nn::Parameters& parameters, const std::vector<nn::ExternalName>& names);

}  // namespace colossal::checkpoint
