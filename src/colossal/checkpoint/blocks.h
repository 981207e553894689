// Lists the blocks of a tensor of the state. Its value may be the whole local tensor or a part of it.
#pragma once
#include "colossal/checkpoint/checkpoint.h"

namespace colossal::checkpoint {

/// Returns the blocks of the logical tensor that the value of `tensor` holds on the rank at `place`.
std::vector<tensor::Block> blocks_of(const NamedTensor& tensor, const tensor::Place& place);
/// Returns the elements of `block`, one of blocks_of(), as a view of `value`, the loaded content of tensor.value.
at::Tensor at_block(const NamedTensor& tensor, const at::Tensor& value, const tensor::Place& place,
                    const tensor::Block& block);

}  // namespace colossal::checkpoint
