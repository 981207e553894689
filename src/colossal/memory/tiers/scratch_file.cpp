#include "colossal/memory/tiers/scratch_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/memory/tiers/block_file.h"

namespace colossal::memory {
namespace {

/// Returns the descriptor of a new file without a name, or -1 with errno.
int open_nameless(const std::string& folder) {
  const int nameless = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (nameless >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return nameless;
  std::string path = folder + "/colossal-scratch-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(path.c_str());
  return named;
}

/// Sets O_DIRECT after opening, because an open() that fails for O_DIRECT does not remove the file that it made.
/// Returns false if the filesystem does not allow it.
bool make_direct(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 && ::fcntl(descriptor, F_SETFL, flags | O_DIRECT) == 0;
}

}  // namespace

ScratchFile::~ScratchFile() { ::close(descriptor_); }

bool ScratchFile::is_in_memory() const {
  struct statfs found{};
  return ::fstatfs(descriptor_, &found) == 0 && (found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC);
}

int ScratchFile::reserve(int64_t bytes) {
  if (bytes <= bytes_) return 0;
  int error = 0;
  do error = ::fallocate(descriptor_, 0, bytes_, bytes - bytes_) == 0 ? 0 : errno;
  while (error == EINTR);
  if (error == EOPNOTSUPP) error = ::ftruncate(descriptor_, bytes) == 0 ? 0 : errno;
  if (error == 0) {
    bytes_ = bytes;
  } else if (::ftruncate(descriptor_, bytes_) != 0) {
    return error;  // some filesystems keep a part of what did not fit; the first error says more than this one
  }
  return error;
}

int64_t ScratchFile::free_bytes() const {
  struct statvfs found{};
  if (::fstatvfs(descriptor_, &found) != 0) return 0;
  return static_cast<int64_t>(found.f_bavail) * static_cast<int64_t>(found.f_frsize);
}

std::unique_ptr<BlockFile> open_scratch_file(const std::string& folder, const BlockFileOptions& options) {
  require(options.requests > 0, "disk", "at least one request must be in flight: got ", options.requests);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  require(!failed && std::filesystem::is_directory(folder), "disk", "the scratch folder ", folder,
          " cannot be created: ", failed ? failed.message() : "a file of that name exists",
          "; name another folder in memory.disk");
  const int descriptor = open_nameless(folder);
  require(descriptor >= 0, "disk", "cannot create a file in the scratch folder ", folder, ": ", std::strerror(errno),
          "; allow this user to write there, or name another folder in memory.disk");
  const bool direct = options.direct && make_direct(descriptor);
  if (direct && options.io_uring)
    if (auto file = make_io_uring_file(descriptor, folder, direct, options.requests)) return file;
  return make_threaded_file(descriptor, folder, direct, options.requests);
}

namespace {

class UnwrittenFile final : public BlockFile {
 public:
  explicit UnwrittenFile(std::string folder) : folder_(std::move(folder)) {}
  const std::string& folder() const override { return folder_; }
  const char* engine() const override { return "none"; }
  bool is_direct() const override { return true; }
  bool is_in_memory() const override { return false; }
  int reserve(int64_t) override { return 0; }
  int64_t free_bytes() const override { return std::numeric_limits<int64_t>::max(); }
  void begin(BlockRequest request) override { request.done(-EBADF); }

 private:
  const std::string folder_;
};

}  // namespace

std::unique_ptr<BlockFile> make_unwritten_file(std::string folder) {
  return std::make_unique<UnwrittenFile>(std::move(folder));
}

}  // namespace colossal::memory
