#include "colossal/comm/backends/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

constexpr const char* kRemedy = "; enlarge /dev/shm, or use another transport: backend = \"gloo\"";

class Mapping : public Segment {
 public:
  Mapping(void* data, size_t size) {
    data_ = static_cast<std::byte*>(data);
    size_ = size;
  }
  ~Mapping() override { munmap(data_, size_); }
};

struct Descriptor {
  explicit Descriptor(int value) : value(value) {}
  ~Descriptor() {
    if (value >= 0) close(value);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int value;
};

std::shared_ptr<Segment> map(int descriptor, size_t size, const std::string& what) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  require(data != MAP_FAILED, "comm", "cannot map ", what, " of ", size, " bytes: ", std::strerror(errno), kRemedy);
  return std::make_shared<Mapping>(data, size);
}

}  // namespace

std::shared_ptr<Segment> make_heap_segment(size_t size) { return map(-1, size, "memory for the ranks' exchange"); }

std::shared_ptr<Segment> create_shared_segment(const std::string& name, size_t size) {
  const Descriptor file(shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  require(file.value >= 0, "comm", "cannot create shared memory ", name, ": ", std::strerror(errno), kRemedy);
  int failure = posix_fallocate(file.value, 0, static_cast<off_t>(size));
  while (failure == EINTR) failure = posix_fallocate(file.value, 0, static_cast<off_t>(size));
  if (failure != 0) shm_unlink(name.c_str());
  require(failure == 0, "comm", "cannot reserve ", size, " bytes of shared memory: ", std::strerror(failure), kRemedy);
  try {
    return map(file.value, size, "shared memory " + name);
  } catch (...) {
    shm_unlink(name.c_str());
    throw;
  }
}

std::shared_ptr<Segment> open_shared_segment(const std::string& name, size_t size) {
  const Descriptor file(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  require(file.value >= 0, "comm", "cannot open shared memory ", name,
          " of a rank on this host: ", std::strerror(errno),
          "; ranks in containers of their own do not share /dev/shm: use backend = \"gloo\"");
  struct stat status {};
  require(fstat(file.value, &status) == 0 && static_cast<size_t>(status.st_size) == size, "comm", "shared memory ",
          name, " has ", status.st_size, " bytes where ", size, " were agreed; do all ranks run the same build?");
  return map(file.value, size, "shared memory " + name);
}

void unlink_shared_segment(const std::string& name) noexcept { shm_unlink(name.c_str()); }

void unlink_shared_segments(const std::string& prefix) noexcept {
  const std::string bare = prefix.substr(prefix.find_first_not_of('/'));
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(bare, 0) == 0) shm_unlink(("/" + name).c_str());
  }
}

}  // namespace colossal::comm
