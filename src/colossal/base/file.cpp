#include "colossal/base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "colossal/base/error.h"

namespace colossal {
namespace {

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

constexpr char kAside[] = ".partial-";
constexpr size_t kAsideDigits = 16;

/// Returns a new temporary name for `path`. It is random because processes of other machines and containers, which may
/// have the same process ids, write to the same folder.
std::string aside_name(const std::string& path) {
  std::random_device random;
  char digits[kAsideDigits + 1];
  std::snprintf(digits, sizeof digits, "%08x%08x", random(), random());
  return path + kAside + digits;
}

bool is_aside_of(const std::string& name, const std::string& file) {
  const std::string start = file + kAside;
  return name.size() == start.size() + kAsideDigits && name.starts_with(start) &&
         name.find_first_not_of("0123456789abcdef", start.size()) == std::string::npos;
}

/// Removes the temporary files of `path` that no process locks, because their processes died. A file that cannot be
/// removed does no harm, so such an error is ignored.
void sweep(const std::string& path) {
  const std::string folder = folder_of(path), file = path.substr(path.rfind('/') + 1);
  std::error_code ended;
  for (std::filesystem::directory_iterator at(folder, ended), end; !ended && at != end; at.increment(ended)) {
    if (!is_aside_of(at->path().filename().string(), file)) continue;
    const int descriptor = ::open(at->path().c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(at->path().c_str());
    ::close(descriptor);
  }
}

const char* remedy(int error) {
  if (error == ENOSPC || error == EDQUOT) return "; free some space";
  if (error == EACCES || error == EPERM || error == EROFS) return "; choose a folder that you may write to";
  if (error == ENOENT) return "; its folder does not exist";
  return "";
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  sweep(path_);  // before writing, because the old temporary files may fill the disk
  while (!open_aside()) {
  }
}

/// Creates and locks the temporary file. Returns false if the name is taken, or if another process removed the file
/// before it was locked.
bool AtomicFile::open_aside() {
  aside_ = aside_name(path_);
  descriptor_ = ::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0 && errno == EEXIST) return false;
  if (descriptor_ < 0) fail("create");
  // Some file systems have no locks; sweep() cannot lock files there either, so it removes none.
  const bool locked = ::flock(descriptor_, LOCK_EX) == 0;
  if (!locked || ::access(aside_.c_str(), F_OK) == 0) return true;  // tests the name: some file systems count no links
  ::close(std::exchange(descriptor_, -1));
  return false;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::unlink(aside_.c_str());
  ::close(descriptor_);
}

void AtomicFile::fail(const char* verb) const {
  const int error = errno;
  throw Error("file", concat("cannot ", verb, " ", path_, ": ", std::strerror(error), remedy(error),
                             "; an earlier file of that name is unchanged"));
}

void AtomicFile::write(const void* bytes, size_t count) {
  require(descriptor_ >= 0, "file", path_, " is already committed");
  constexpr size_t kMaxWriteBytes = size_t{1} << 30;  // one system call writes less than 2 GiB
  const char* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t taken = ::write(descriptor_, next, std::min(count, kMaxWriteBytes));
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
  const int lock = ::dup(descriptor_);                               // keeps the lock until the file has its name
  const bool closed = ::close(std::exchange(descriptor_, -1)) == 0;  // some file systems report a full disk only here
  const bool renamed = closed && ::rename(aside_.c_str(), path_.c_str()) == 0;
  const int error = errno;
  if (!renamed) ::unlink(aside_.c_str());
  if (lock >= 0) ::close(lock);
  errno = error;
  if (!renamed) fail(closed ? "rename to" : "close");
  sync_folder(folder_of(path_));
}

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

namespace {

/// Opens a file for reading and passes its size and then its bytes on, piece by piece.
void read_pieces(const std::string& path, const std::function<void(int64_t size)>& begin,
                 const std::function<void(std::string_view piece)>& take) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require(descriptor >= 0, "file", "cannot open ", path, ": ", std::strerror(errno));
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } closer{descriptor};
  struct stat status{};
  const int error = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  require(error == 0, "file", "cannot read ", path, ": ", std::strerror(error));
  require(!S_ISDIR(status.st_mode), "file", path, " must be a file: got a folder");
  begin(status.st_size);
  char piece[1 << 16];
  for (;;) {  // ignores the size found above, because pipes and /proc have none, and a file may grow
    const ssize_t taken = ::read(descriptor, piece, sizeof(piece));
    if (taken < 0 && errno == EINTR) continue;
    require(taken >= 0, "file", "cannot read ", path, ": ", std::strerror(errno));
    if (taken == 0) return;
    take({piece, static_cast<size_t>(taken)});
  }
}

}  // namespace

void copy_file(const std::string& from, const std::string& to) {
  std::optional<AtomicFile> file;
  read_pieces(from, [&](int64_t) { file.emplace(to); }, [&](std::string_view piece) { file->write(piece); });
  file->commit();
}

std::string read_file(const std::string& path, int64_t max_bytes) {
  std::string text;
  const auto begin = [&](int64_t size) {
    require(size <= max_bytes, "file", path, " is too large: ", size, " bytes, at most ", max_bytes);
    text.reserve(static_cast<size_t>(size));
  };
  read_pieces(path, begin, [&](std::string_view piece) {
    text.append(piece);
    require(static_cast<int64_t>(text.size()) <= max_bytes, "file", path, " is too large: more than ", max_bytes,
            " bytes");
  });
  return text;
}

std::string file_stamp(const std::string& path) {
  constexpr int64_t kCoarsest = 2;  // seconds; of FAT
  struct stat found{};
  timespec now{};
  if (::stat(path.c_str(), &found) != 0 || ::clock_gettime(CLOCK_REALTIME, &now) != 0) return "";
  if (found.st_mtim.tv_sec + kCoarsest >= now.tv_sec && found.st_mtim.tv_sec <= now.tv_sec + kCoarsest) return "";
  return concat(found.st_size, " ", found.st_mtim.tv_sec, ".", found.st_mtim.tv_nsec, " ", found.st_ctim.tv_sec, ".",
                found.st_ctim.tv_nsec, " ", found.st_dev, ".", found.st_ino);
}

void sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(descriptor >= 0, "file", "cannot open the folder ", path, ": ", std::strerror(errno));
  const bool synced = ::fsync(descriptor) == 0 || errno == EINVAL;  // EINVAL: the file system cannot flush a folder
  const int error = errno;
  ::close(descriptor);
  require(synced, "file", "cannot flush the folder ", path, ": ", std::strerror(error));
}

void create_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  require(!error && std::filesystem::is_directory(path, error), "file", "cannot create the folder ", path, ": ",
          error ? error.message() : "a file of that name exists");
}

bool folder_appears(const std::string& path, std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kPause(100);
  std::error_code ignored;
  for (auto waited = kPause.zero(); !std::filesystem::is_directory(path, ignored); waited += kPause) {
    if (waited >= limit) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace colossal
