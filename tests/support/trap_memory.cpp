#include "support/trap_memory.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "colossal/base/error.h"

namespace colossal::test {
namespace {

constexpr size_t kTrapBytes = size_t{64} << 30;  // bytes of address space; a page takes memory once it is written
constexpr size_t kTrapLine = 64;
constexpr size_t kTrapFence = 64;                    // bytes after a block that must not change
constexpr size_t kWorthReturning = size_t{1} << 20;  // smaller blocks keep their pages

std::byte* mapped(int file, int protection) {
  void* at = mmap(nullptr, kTrapBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  require(at != MAP_FAILED, "trap", "cannot map ", kTrapBytes, " bytes: ", std::strerror(errno));
  return static_cast<std::byte*>(at);
}

struct sigaction before_trap;

/// Prints a message and a stack trace. The instruction then runs again under the previous handler, which ends the
/// process.
void on_fault(int signal, siginfo_t* info, void*) {
  if (TrapMemory::of_process().contains(info->si_addr)) {
    constexpr char kMessage[] = "the host touched memory of the trap device, from:\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
    void* frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  }
  sigaction(signal, &before_trap, nullptr);
}

}  // namespace

TrapMemory& TrapMemory::of_process() {
  static auto* memory = new TrapMemory();  // never deleted, because threads of LibTorch's engine outlive main
  return *memory;
}

TrapMemory::TrapMemory() {
  file_ = memfd_create("trap device", MFD_CLOEXEC);
  require(file_ >= 0 && ftruncate(file_, kTrapBytes) == 0, "trap",
          "cannot make a file in memory: ", std::strerror(errno));
  forbidden_ = mapped(file_, PROT_NONE);
  open_ = mapped(file_, PROT_READ | PROT_WRITE);
  free_[0] = kTrapBytes;
  void* first_frame;
  backtrace(&first_frame, 1);  // loads its library now, because the handler must not
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &before_trap);
}

void* TrapMemory::allocate(size_t bytes) {
  const size_t size = (bytes + kTrapFence + kTrapLine - 1) / kTrapLine * kTrapLine;
  const std::lock_guard lock(mutex_);
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const auto [offset, room] = *hole;
    if (room < size) continue;
    free_.erase(hole);
    if (room > size) free_[offset + size] = room - size;
    in_use_[offset] = {size, bytes};
    std::memset(open_ + offset, 0xFF, size);
    return forbidden_ + offset;
  }
  throw Error("trap", concat("there is no room for ", bytes, " bytes more"));
}

size_t TrapMemory::bytes_at(const void* address) {
  const std::lock_guard lock(mutex_);
  const size_t asked = in_use_.at(static_cast<size_t>(static_cast<const std::byte*>(address) - forbidden_)).asked;
  return (asked + kTrapLine - 1) / kTrapLine * kTrapLine;
}

void TrapMemory::free(void* address) {
  const std::lock_guard lock(mutex_);
  size_t offset = static_cast<size_t>(static_cast<std::byte*>(address) - forbidden_);
  auto [size, asked] = in_use_.at(offset);
  if (!std::all_of(open_ + offset + asked, open_ + offset + size, [](std::byte b) { return b == std::byte{0xFF}; })) {
    constexpr char kMessage[] = "a kernel of the trap device wrote behind a tensor\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
    std::abort();
  }
  in_use_.erase(offset);
  if (size >= kWorthReturning)
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(size));
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += size;
      return;
    }
  }
  free_[offset] = size;
}

bool TrapMemory::contains(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  return byte >= forbidden_ && byte < forbidden_ + kTrapBytes;
}

void* TrapMemory::accessible(const void* address) const {
  if (!address) return nullptr;
  require(contains(address), "trap", "a kernel of the trap device was handed memory of the host");
  return open_ + (static_cast<const std::byte*>(address) - forbidden_);
}

}  // namespace colossal::test
