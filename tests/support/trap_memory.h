// Memory that only kernels may access. Each byte has two addresses: one that faults, which tensors hold, and one that
// works.
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

/// A memory file that is mapped twice: once without any permission, and once readable and writable.
/// Thread safety: any thread may call the members.
class TrapMemory {
 public:
  /// Returns the only instance. A process has one, because the LibTorch backend that uses it is registered for the
  /// lifetime of the process. The first call also installs a handler: an access to the forbidden mapping prints a
  /// message and a stack trace before the process ends.
  static TrapMemory& of_process();

  /// Allocates `bytes` of forbidden memory, aligned to 64 and filled with 0xFF, so floating-point numbers are NaN until
  /// they are written. Never returns null. Errors: throws if the 64 GiB of addresses are used up.
  void* allocate(size_t bytes);
  /// Returns the size of a block of allocate(), in bytes, rounded up to lines of 64.
  size_t bytes_at(const void* address);
  /// Frees a block of allocate(). Ends the process if bytes after the block were written.
  void free(void* address);
  bool contains(const void* address) const;
  /// Returns the address at which the same bytes can be read and written; null for null. Errors: throws for a host
  /// address, which a kernel of a device cannot access.
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
  std::unordered_map<size_t, Lent> in_use_;  // allocated blocks by offset
};

}  // namespace colossal::test
