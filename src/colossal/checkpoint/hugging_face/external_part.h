// Maps a tensor of a Hugging Face folder, or some of its rows, to a piece of one of our parameters.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/checkpoint/box.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/frozen_form.h"
#include "colossal/nn/parameter.h"

namespace colossal::comm {
class Group;
}

namespace colossal::checkpoint {

/// How a folder stores a parameter whose name is `stacked`: not a stack; each entry in tensors of its own, which lack
/// dimension 0; all entries in one tensor. Each part of a stack is of one entry.
enum class Stack : uint8_t { None, Separate, Joint };

struct ExternalPart {
  const nn::Parameter* parameter;  ///< parameter or buffer
  std::string name;                ///< name of the tensor in the folder
  Box box;                         ///< elements of the logical parameter
  bool transposed;                 ///< true if the folder holds the transpose
  int64_t leading_ones = 0;        ///< number of dimensions of size 1 that the folder's tensor has in front
  /// Rows of the tensor that the box stands for (dimension 0 in our orientation): first, first + stride and so on, of
  /// `rows` rows.
  int64_t first = 0, stride = 1, rows = 0;
  Stack stack = Stack::None;

  /// Return the shape of the whole tensor in our orientation, and as the folder stores it. Ours of Stack::Separate has
  /// a dimension 0 of size 1.
  std::vector<int64_t> shape() const;
  std::vector<int64_t> external_shape() const;
  /// Returns the rows of a whole tensor of shape() that the box stands for, as a view.
  at::Tensor rows_of(const at::Tensor& whole) const;
  /// Convert the folder's tensor to the shape shape(), and back, as views.
  at::Tensor to_ours(const at::Tensor& tensor) const;
  at::Tensor to_theirs(const at::Tensor& tensor) const;
};

/// Refuses exports of a model whose layers have added parameters (nn::Parameter::is_added, e.g. from an adapter),
/// because the folder would not contain them. Errors ("hugging face"): such a parameter.
void require_none_added(const nn::Parameters& parameters, const std::string& model = "");

/// Returns all pieces of a model's folder (ExternalNames::model) in the order of `names`, including the pieces of other
/// pipeline stages. Buffers count if `names` has them; added parameters do not.
/// Errors: throws Error("hugging face", ...) if a parameter has no name or two names, or a name has no parameter. The
///         number of whole parts must be the number of the parameter's segments, and the parts' rows must add up to the
///         parameter's rows. The rows taken of one tensor must be each of its rows once, with one shape. A stack must
///         have two dimensions or more, and names of whole tensors with `{}`, or one without.
std::vector<ExternalPart> external_parts(const nn::Parameters& parameters, const std::vector<nn::ExternalName>& names,
                                         const std::string& model = "");

/// Returns the tensors that hold the rows of a weight, or of one entry of a stack, as nn::FrozenForm has them: one for
/// each name among `parts`, which are all of its parts, in the order of their first ones. None is quantized.
std::vector<nn::FolderMatrix> matrices_of(const std::vector<const ExternalPart*>& parts);

/// Parts of one tensor of the folder.
using Parts = std::vector<const ExternalPart*>;

/// Gathers a whole tensor of a folder from the ranks that hold its parts (export.cpp). Returns it in our orientation on
/// the host of rank 0; undefined on other ranks.
/// Communication: every rank of `world` must call. Each primary block is sent to rank 0.
at::Tensor gather(const Parts& parts, const nn::Parameters& parameters, comm::Group& world);

}  // namespace colossal::checkpoint
