// Memory that only kernels may touch: each byte has an address that faults, which tensors carry, and one that works.
//
//   test::TrapMemory& memory = test::TrapMemory::of_process();
//   void* there = memory.allocate(64);                    // reading *there ends the process
//   std::memset(memory.accessible(there), 0, 64);         // what a kernel does
//   memory.free(there);
#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>

namespace colossal::test {

/// One file in memory, mapped twice: without any permission and readable and writable. Safe to use from any thread.
class TrapMemory {
 public:
  /// The only one: a LibTorch backend, whose memory it is, is registered for the whole process and for ever. The first
  /// call also makes a touch of the forbidden mapping say what it was and where it came from before the process ends.
  static TrapMemory& of_process();

  /// `bytes` of forbidden memory, aligned to 64, that hold 0xFF: numbers are NaN until something is written. Never
  /// null. Errors: throws when the 64 GiB of addresses are used up.
  void* allocate(size_t bytes);
  /// Bytes of what allocate() gave, in whole lines of 64.
  size_t bytes_at(const void* address);
  /// Gives back what allocate() gave. Ends the process where something was written behind those bytes.
  void free(void* address);
  bool contains(const void* address) const;
  /// Where the same bytes can be read and written; null of null. Errors: throws for an address of the host, which a
  /// kernel of a device cannot reach.
  void* accessible(const void* address) const;

 private:
  TrapMemory();

  std::byte *forbidden_ = nullptr, *open_ = nullptr;
  int file_ = -1;
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset -> bytes
  struct Lent {
    size_t bytes, asked;
  };
  std::unordered_map<size_t, Lent> in_use_;  // by offset
};

}  // namespace colossal::test
