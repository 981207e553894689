#include "colossal/checkpoint/local_boxes.h"

#include <ATen/ATen.h>

#include "colossal/checkpoint/box.h"

namespace colossal::checkpoint {

std::vector<tensor::LocalBox> local_boxes_of(const NamedTensor& tensor, const tensor::Place& place) {
  return tensor.part ? tensor::local_boxes(tensor.spec, place, *tensor.part) : tensor.spec.local_boxes(place);
}

at::Tensor at_local_box(const NamedTensor& tensor, const at::Tensor& value, const tensor::Place& place,
                        const tensor::LocalBox& block) {
  if (tensor.part) return tensor::at_local_box(value.detach(), tensor.spec.local_shape(place), *tensor.part, block);
  return at_box(value.detach(), {block.local_start, block.size});
}

}  // namespace colossal::checkpoint
