// Observes the operators that read chunks, and those of a pass that first read each parameter.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace colossal::memory {

/// While an observer exists, each chunk's watcher is notified of operators whose inputs share the chunk's memory. It is
/// called before and after the operator, on the operator's thread. The inner operators of an operator count, too. If
/// the operator wrote to the chunk, Chunk::set_written() records it before the second call.
///
/// The observation is process-wide, because autograd runs backward passes on its own threads on accelerators. Observers
/// are counted and every chunk names the watcher of its own store, so several stores do not disturb each other.
/// Cost: about one microsecond per operator.
class UseObserver {
 public:
  UseObserver();
  ~UseObserver();
  UseObserver(const UseObserver&) = delete;
  UseObserver& operator=(const UseObserver&) = delete;
};

/// Runs `pass` in this thread, without gradients, and returns the indices of `tensors` in the order in which operators
/// first read the memory of each. Tensors that share memory (tied weights) are together, and tensors that no operator
/// reads are last, both in the order given. A chunk store packs parameters best in this order.
std::vector<size_t> order_of_first_use(const std::vector<at::Tensor>& tensors, const std::function<void()>& pass);

}  // namespace colossal::memory
