// Sees every operator that is about to read a chunk.
#pragma once

namespace colossal::memory {

/// While one lives, each chunk's watcher hears of operators whose inputs share its memory, before and after they run,
/// on the thread they run on. The inner operators of an operator count too.
/// Process-wide, since autograd runs backward passes on threads of its own on accelerators; observers are counted and
/// chunks tell whose they are, so several stores do not disturb one another. Cost: about a microsecond an operator.
class UseObserver {
 public:
  UseObserver();
  ~UseObserver();
  UseObserver(const UseObserver&) = delete;
  UseObserver& operator=(const UseObserver&) = delete;
};

}  // namespace colossal::memory
