#include "colossal/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "colossal/base/error.h"

namespace colossal {

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK, because opening a pipe would wait for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(descriptor >= 0, "file", "cannot open ", path, ": ", std::strerror(errno));
  struct stat status = {};
  const bool regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const size_t size = regular ? static_cast<size_t>(status.st_size) : 0;
  void* memory = size > 0 ? mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0) : nullptr;
  const int reason = errno;
  close(descriptor);  // the mapping keeps the file open
  require(regular, "file", "must be a regular file: ", path);
  require(memory != MAP_FAILED, "file", "cannot map ", path, ": ", std::strerror(reason));
  return std::shared_ptr<const MappedFile>(new MappedFile(path, {static_cast<const char*>(memory), size}));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void MappedFile::leave(std::string_view part) const {
  if (part.empty()) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
  // The mapping is read-only, so dropping its pages loses no data, neither of `part` nor of neighbours on its pages.
  madvise(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(part.data()) + part.size() - begin,
          MADV_DONTNEED);
}

bool MappedFile::is_in_memory(std::string_view part) const {
  constexpr uintptr_t kStep = 128 << 10;  // usual size of the system's read-ahead
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data()), end = begin + part.size();
  const auto is_there = [page](uintptr_t address) {
    unsigned char state = 0;
    return mincore(reinterpret_cast<void*>(address / page * page), page, &state) == 0 && (state & 1) != 0;
  };
  for (uintptr_t at = begin; at < end; at += kStep)
    if (!is_there(at)) return false;
  return part.empty() || is_there(end - 1);
}

}  // namespace colossal
