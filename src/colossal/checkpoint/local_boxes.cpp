#include "colossal/checkpoint/local_boxes.h"

#include <ATen/ATen.h>

#include "colossal/checkpoint/box.h"

namespace colossal::checkpoint {

std::vector<tensor::LocalBox> local_boxes_of(const NamedTensor& tensor, const tensor::MeshCoordinates& coordinates) {
  return tensor.part ? tensor::local_boxes(tensor.spec, coordinates, *tensor.part)
                     : tensor.spec.local_boxes(coordinates);
}

at::Tensor at_local_box(const NamedTensor& tensor, const at::Tensor& value, const tensor::MeshCoordinates& coordinates,
                        const tensor::LocalBox& block) {
  if (tensor.part)
    return tensor::at_local_box(value.detach(), tensor.spec.local_shape(coordinates), *tensor.part, block);
  return at_box(value.detach(), {block.local_start, block.size});
}

}  // namespace colossal::checkpoint
