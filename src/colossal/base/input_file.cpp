#include "colossal/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "colossal/base/error.h"

namespace colossal {

std::shared_ptr<const InputFile> InputFile::open(const std::string& path) {
  // O_NONBLOCK, because opening a pipe would wait for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(descriptor >= 0, "file", "cannot open ", path, ": ", std::strerror(errno),
          errno == EMFILE ? "; allow more with `ulimit -n`, or join files" : "");
  struct stat status = {};
  const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  std::shared_ptr<const InputFile> file(new InputFile(path, descriptor, status.st_size));
  require(regular, "file", "must be a regular file: ", path);
  return file;
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(int64_t begin, int64_t count, void* out) const {
  require(begin >= 0 && count >= 0 && begin <= size_ && count <= size_ - begin, "file", path_, ": cannot read ", count,
          " bytes at ", begin, ": the file has ", size_, " bytes");
  constexpr int64_t kMaxReadBytes = int64_t{1} << 30;  // one system call reads less than 2 GiB
  char* next = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t taken = ::pread(descriptor_, next, static_cast<size_t>(std::min(count, kMaxReadBytes)), begin);
    if (taken < 0 && errno == EINTR) continue;
    require(taken >= 0, "file", "cannot read ", path_, ": ", std::strerror(errno));
    if (taken == 0) fail_as_shortened();
    next += taken;
    begin += taken;
    count -= taken;
  }
}

void InputFile::fail_as_shortened() const {
  struct stat status = {};
  ::fstat(descriptor_, &status);
  throw Error("file", concat(path_, " became shorter while it was read: it had ", size_, " bytes, now ", status.st_size,
                             "; restore it, and replace files that are in use instead of editing them"));
}

std::string InputFile::start(int64_t count) const {
  std::string bytes(static_cast<size_t>(std::min(count, size_)), '\0');
  read(0, static_cast<int64_t>(bytes.size()), bytes.data());
  return bytes;
}

std::string InputFile::content() const { return start(size_); }

}  // namespace colossal
