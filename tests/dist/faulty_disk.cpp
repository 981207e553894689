// Loaded into the program before the C library (LD_PRELOAD). Simulates a disk for scratch files that fails as
// COLOSSAL_FAULTY_DISK says. Files with a name, such as checkpoints, are on a working disk, except for "room" and
// "rollouts".
//
//   full N      the disk has space for N bytes
//   write N     every write after the N-th fails with EIO
//   read N      every read after the N-th fails with EIO
//   short N     every read after the N-th returns no bytes
//   corrupt N   every read after the N-th returns one wrong byte
//   count       the disk works; the last line on stderr is "scratch: R reads, W writes"
//   room PATH   the disk works; checkpoints find no space on their disk once a file PATH exists
//   rollouts    the disk works; the records of rollouts find no space on their disk
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Fault {
  Fault() {
    const char* said = std::getenv("COLOSSAL_FAULTY_DISK");
    if (!said) return;
    const std::string words = said;
    const size_t blank = words.find(' ');
    kind = words.substr(0, blank);
    if (blank == std::string::npos) return;
    path = words.substr(blank + 1);
    number = std::atoll(path.c_str());
  }
  std::string kind, path;
  long long number = 0;
  std::atomic<long long> reads{0}, writes{0};
};

Fault& fault() {
  static Fault one;
  return one;
}

__attribute__((destructor)) void tell() {
  if (fault().kind == "count")
    std::fprintf(stderr, "scratch: %lld reads, %lld writes\n", fault().reads.load(), fault().writes.load());
}

bool is_scratch(int descriptor) {
  struct stat found{};
  return fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink == 0;
}

template <class Function>
Function of_system(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

bool is_below(const char* folder, int descriptor) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = readlink(link.c_str(), path, sizeof(path));
  return size > 0 && std::string(path, static_cast<size_t>(size)).find(folder) != std::string::npos;
}

int refuse(int error) {
  errno = error;
  return -1;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

struct io_uring;

// Requests go through the calls below.
int io_uring_queue_init(unsigned, io_uring*, unsigned) { return -ENOSYS; }

int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  static const auto system = of_system<int (*)(int, int, off_t, off_t)>("fallocate");
  if (fault().kind == "full" && is_scratch(descriptor) && offset + bytes > fault().number) return refuse(ENOSPC);
  return system(descriptor, mode, offset, bytes);
}

ssize_t write(int descriptor, const void* memory, size_t bytes) {
  static const auto system = of_system<ssize_t (*)(int, const void*, size_t)>("write");
  if (fault().kind == "room" && is_below("/checkpoints/", descriptor) && access(fault().path.c_str(), F_OK) == 0)
    return refuse(ENOSPC);
  return system(descriptor, memory, bytes);
}

ssize_t pread(int descriptor, void* memory, size_t bytes, off_t offset) {
  static const auto system = of_system<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  const std::string& kind = fault().kind;
  const bool fails = is_scratch(descriptor) && ++fault().reads > fault().number;
  if (fails && kind == "read") return refuse(EIO);
  if (fails && kind == "short") return 0;
  const ssize_t result = system(descriptor, memory, bytes, offset);
  if (fails && kind == "corrupt" && result > 9) static_cast<char*>(memory)[9] ^= 4;
  return result;
}

ssize_t pwrite(int descriptor, const void* memory, size_t bytes, off_t offset) {
  static const auto system = of_system<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  if (fault().kind == "rollouts" && is_below("/rollouts/", descriptor)) return refuse(ENOSPC);
  if (is_scratch(descriptor) && ++fault().writes > fault().number && fault().kind == "write") return refuse(EIO);
  return system(descriptor, memory, bytes, offset);
}
}
#pragma GCC visibility pop
