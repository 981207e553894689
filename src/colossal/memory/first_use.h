// In which order a pass of a model first uses its parameters: how a chunk store packs them best.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace colossal::memory {

/// Runs `pass` in this thread, without gradients, and returns the indices of `tensors` in the order in which operators
/// first read the memory of each: those that share memory (tied weights) together, those that nobody reads behind the
/// others, both in the order given.
std::vector<size_t> order_of_first_use(const std::vector<at::Tensor>& tensors, const std::function<void()>& pass);

}  // namespace colossal::memory
