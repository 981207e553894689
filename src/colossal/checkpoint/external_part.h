// A tensor of a Hugging Face folder, or some of its rows, as a piece of one of our parameters.
#pragma once
#include <string>
#include <vector>

#include "colossal/checkpoint/box.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/parameter.h"

namespace colossal::checkpoint {

struct ExternalPart {
  const nn::Parameter* parameter;  ///< or a buffer
  std::string name;                ///< name of the tensor in the folder
  Box box;                         ///< the elements of the logical parameter
  bool transposed;                 ///< the folder holds the transpose
  int64_t leading_ones = 0;        ///< dimensions of size 1 in front of it there
  /// Which rows of the tensor the box is (dimension 0 in our orientation): first, first + stride and so on of `rows`
  int64_t first = 0, stride = 1, rows = 0;

  /// Shape of the whole tensor: in our orientation, and as the folder stores it.
  std::vector<int64_t> shape() const;
  std::vector<int64_t> external_shape() const;
  /// The rows of a whole tensor of shape() that the box is: a view.
  at::Tensor rows_of(const at::Tensor& whole) const;
  /// The folder's tensor in the shape shape(), and back: views.
  at::Tensor to_ours(const at::Tensor& tensor) const;
  at::Tensor to_theirs(const at::Tensor& tensor) const;
};

/// Errors ("hugging face"): a model with parameters that wrappers of products added (nn::Parameter::is_added). For
/// exports, which would leave them out.
void require_none_added(const nn::Parameters& parameters, const std::string& model = "");

/// Every piece of the folder of a model (ExternalNames::model), in the order of `names`, those of other stages of a
/// pipeline included. Buffers count if `names` has them; parameters that wrappers of products added do not.
/// Errors: throws Error("hugging face", ...) when a parameter has no name or two, a name is of no parameter, the number
///         of whole parts is not that of the parameter's segments, rows are not as many as the parameter's, or those
///         that are taken of a tensor are not all of its rows once, or not of one shape.
std::vector<ExternalPart> external_parts(const nn::Parameters& parameters, const std::vector<nn::ExternalName>& names,
                                         const std::string& model = "");

}  // namespace colossal::checkpoint
