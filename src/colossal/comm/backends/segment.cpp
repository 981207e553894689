#include "colossal/comm/backends/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

constexpr const char* kRemedy = "; free memory on this host, or use another transport: backend = \"gloo\"";
constexpr unsigned kNeverExecutable = 8;  // MFD_NOEXEC_SEAL, which older headers lack

class Mapping : public Segment {
 public:
  Mapping(void* data, size_t size) {
    data_ = static_cast<std::byte*>(data);
    size_ = size;
  }
  ~Mapping() override { munmap(data_, size_); }
};

std::shared_ptr<Segment> map(int descriptor, size_t size, const char* what) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  require(data != MAP_FAILED, "comm", "cannot map ", what, " of ", size, " bytes: ", std::strerror(errno), kRemedy);
  return std::make_shared<Mapping>(data, size);
}

}  // namespace

std::shared_ptr<Segment> make_heap_segment(size_t size) { return map(-1, size, "memory for the ranks' exchange"); }

Descriptor create_shared_memory(size_t size) {
  Descriptor memory(memfd_create("colossal", MFD_CLOEXEC | kNeverExecutable));
  // Some systems refuse memory that might be executed, while older kernels reject the flag, so the flag is tried
  // first.
  if (!memory.is_open() && errno == EINVAL) memory = Descriptor(memfd_create("colossal", MFD_CLOEXEC));
  require(memory.is_open(), "comm", "cannot create shared memory: ", std::strerror(errno), kRemedy);
  int failure = posix_fallocate(memory.value(), 0, static_cast<off_t>(size));
  while (failure == EINTR) failure = posix_fallocate(memory.value(), 0, static_cast<off_t>(size));
  require(failure == 0, "comm", "cannot reserve ", size, " bytes of shared memory: ", std::strerror(failure), kRemedy);
  return memory;
}

std::shared_ptr<Segment> map_shared_memory(const Descriptor& memory, size_t size) {
  struct stat status{};
  require(fstat(memory.value(), &status) == 0 && static_cast<size_t>(status.st_size) == size, "comm",
          "shared memory of a rank on this host must have ", size, " bytes: got ", status.st_size,
          "; start all ranks with the same build");
  return map(memory.value(), size, "shared memory");
}

}  // namespace colossal::comm
