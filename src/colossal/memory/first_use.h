// The order in which a pass of a model first uses its parameters, in which a chunk store packs them best.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace colossal::memory {

/// Runs `pass` in this thread, without gradients, and returns the indices of `tensors` in the order in which operators
/// first read the memory of each. Tensors that share memory (tied weights) are together, and tensors that no operator
/// reads are last, both in the order given.
std::vector<size_t> order_of_first_use(const std::vector<at::Tensor>& tensors, const std::function<void()>& pass);

}  // namespace colossal::memory
