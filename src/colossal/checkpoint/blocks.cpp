#include "colossal/checkpoint/blocks.h"

#include <ATen/ATen.h>

#include "colossal/checkpoint/box.h"

namespace colossal::checkpoint {

std::vector<tensor::Block> blocks_of(const NamedTensor& tensor, const tensor::Place& place) {
  return tensor.part ? tensor::blocks(tensor.spec, place, *tensor.part) : tensor.spec.blocks(place);
}

at::Tensor at_block(const NamedTensor& tensor, const at::Tensor& value, const tensor::Place& place,
                    const tensor::Block& block) {
  if (tensor.part) return tensor::at_block(value.detach(), tensor.spec.local_shape(place), *tensor.part, block);
  return at_box(value.detach(), {block.local_start, block.size});
}

}  // namespace colossal::checkpoint
