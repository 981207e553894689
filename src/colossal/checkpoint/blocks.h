// The blocks of a tensor of the state, whether its value is the whole local tensor or a part of it.
#pragma once
#include "colossal/checkpoint/checkpoint.h"

namespace colossal::checkpoint {

std::vector<tensor::Block> blocks_of(const NamedTensor& tensor, const tensor::Place& place);
/// The elements of `block`, one of those, as a view of `value`: what is held of tensor.value.
at::Tensor at_block(const NamedTensor& tensor, const at::Tensor& value, const tensor::Place& place,
                    const tensor::Block& block);

}  // namespace colossal::checkpoint
