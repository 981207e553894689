// Lists the local boxes of a tensor of the state. Its value may be the whole local tensor or a part of it.
#pragma once
#include "colossal/checkpoint/checkpoint.h"

namespace colossal::checkpoint {

/// Returns the blocks of the logical tensor that the value of `tensor` holds on the rank at `coordinates`.
std::vector<tensor::LocalBox> local_boxes_of(const NamedTensor& tensor, const tensor::MeshCoordinates& coordinates);
/// Returns the elements of `block`, one of local_boxes_of(), as a view of `value`, the loaded content of tensor.value.
at::Tensor at_local_box(const NamedTensor& tensor, const at::Tensor& value, const tensor::MeshCoordinates& coordinates,
                        const tensor::LocalBox& block);

}  // namespace colossal::checkpoint
