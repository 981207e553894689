// The inputs of blocks that overwrite their states without gradients.
//
//   copy_kept_inputs({&m, &z});                         // then, without gradients, m and z may be overwritten
#pragma once
#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace colossal::models {

/// Replaces the states that a block reads by copies if backward reads them again: the first pass of a recomputed block
/// runs without gradients, but one of its inputs has one. Does nothing with gradients, and in passes that have none.
void copy_kept_inputs(std::initializer_list<at::Tensor*> states);

}  // namespace colossal::models
