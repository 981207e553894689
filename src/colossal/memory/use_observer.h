// Observes every operator that reads a chunk.
#pragma once

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

}  // namespace colossal::memory
