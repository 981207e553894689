#include "colossal/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "colossal/base/error.h"

namespace colossal {
namespace {

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string unique_aside_name(const std::string& path) {
  static std::atomic<int> count{0};  // ranks that are threads may write at once
  return concat(path, ".partial-", ::getpid(), "-", count++);
}

const char* remedy(int error) {
  if (error == ENOSPC || error == EDQUOT) return "; free some space";
  if (error == EACCES || error == EPERM || error == EROFS) return "; choose a place that may be written to";
  if (error == ENOENT) return "; its folder does not exist";
  return "";
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), aside_(unique_aside_name(path_)) {
  descriptor_ = ::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(aside_.c_str());
}

void AtomicFile::fail(const char* verb) const {
  const int error = errno;
  throw Error("file", concat("cannot ", verb, " ", path_, ": ", std::strerror(error), remedy(error),
                             "; an earlier file of that name is unchanged"));
}

void AtomicFile::write(const void* bytes, size_t count) {
  require(descriptor_ >= 0, "file", path_, " is already committed");
  constexpr size_t kLargestWrite = size_t{1} << 30;  // one system call takes less than 2 GiB
  const char* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t taken = ::write(descriptor_, next, std::min(count, kLargestWrite));
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) fail("write");
    next += taken;
    count -= static_cast<size_t>(taken);
    written_ += taken;
  }
}

void AtomicFile::commit() {
  require(descriptor_ >= 0, "file", path_, " is already committed");
  if (::fsync(descriptor_) != 0) fail("flush");
  const bool closed = ::close(std::exchange(descriptor_, -1)) == 0;  // some file systems report a full disk only here
  if (!closed || ::rename(aside_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(aside_.c_str());
    errno = error;
    fail(closed ? "rename to" : "close");
  }
  sync_folder(folder_of(path_));
}

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

std::string read_file(const std::string& path, int64_t max_bytes) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require(descriptor >= 0, "file", "cannot open ", path, ": ", std::strerror(errno));
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } closer{descriptor};
  struct stat status {};
  require(::fstat(descriptor, &status) == 0, "file", "cannot read ", path, ": ", std::strerror(errno));
  require(!S_ISDIR(status.st_mode), "file", path, " is a folder, a file is wanted");
  require(status.st_size <= max_bytes, "file", path, " is too large: ", status.st_size, " bytes, at most ", max_bytes);
  std::string text;
  text.reserve(static_cast<size_t>(status.st_size));
  char piece[1 << 16];
  for (;;) {  // not by the size found above: pipes and /proc have none, and a file may grow
    const ssize_t taken = ::read(descriptor, piece, sizeof(piece));
    if (taken < 0 && errno == EINTR) continue;
    require(taken >= 0, "file", "cannot read ", path, ": ", std::strerror(errno));
    if (taken == 0) return text;
    text.append(piece, static_cast<size_t>(taken));
    require(static_cast<int64_t>(text.size()) <= max_bytes, "file", path, " is too large: more than ", max_bytes, " bytes");
  }
}

void sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(descriptor >= 0, "file", "cannot open the folder ", path, ": ", std::strerror(errno));
  const bool synced = ::fsync(descriptor) == 0 || errno == EINVAL;  // EINVAL: a file system that has no such call
  const int error = errno;
  ::close(descriptor);
  require(synced, "file", "cannot flush the folder ", path, ": ", std::strerror(error));
}

void create_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  require(!error && std::filesystem::is_directory(path, error), "file", "cannot create the folder ", path, ": ",
          error ? error.message() : "a file of that name is in the way");
}

}  // namespace colossal
