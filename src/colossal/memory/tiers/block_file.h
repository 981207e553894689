// A file on a disk whose blocks are read and written without the system's cache, many at a time.
//
//   auto file = memory::open_scratch_file("scratch/", {});
//   require(file->reserve(1 << 20) == 0, "disk", "no room in ", file->folder());
//   file->begin({memory::BlockRequest::Kind::Write, bytes, 1 << 20, 0, [](int64_t result) { ... }});
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace colossal::memory {

/// What disks transfer whole: offsets, sizes and addresses of requests are multiples of it, in bytes.
inline constexpr int64_t kBlock = 4096;

/// `bytes` to the next multiple of kBlock.
constexpr int64_t whole_blocks(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

struct BlockRequest {
  enum class Kind { Read, Write } kind;
  char* memory;
  int64_t bytes, offset;
  /// Called once, when the request is over, by a thread of the file, or by begin() where the system refuses it at once:
  /// with the bytes that were transferred, fewer than asked for at times, or a negative errno. It may begin other
  /// requests, and must not throw.
  std::function<void(int64_t result)> done;
};

/// The system calls that DiskSpace is made of; what a test replaces to have a disk that fails.
/// Thread safety: several threads may begin requests. The destructor comes when none is under way.
class BlockFile {
 public:
  virtual ~BlockFile() = default;
  /// For messages: the folder, since the file itself has no name.
  virtual const std::string& folder() const = 0;
  /// How requests reach the system: "io_uring" or "threads".
  virtual const char* engine() const = 0;
  /// Past the system's cache (O_DIRECT).
  virtual bool is_direct() const = 0;
  /// Its blocks are in the host's memory (tmpfs): it is no disk at all.
  virtual bool is_in_memory() const = 0;
  /// The file has `bytes` from now on, which the disk keeps for it: no later write finds it full. On a filesystem that
  /// cannot promise that, a later write may. Returns 0 or an errno: then the file is as before. One call at a time.
  virtual int reserve(int64_t bytes) = 0;
  /// What the filesystem still has for this process.
  virtual int64_t free_bytes() const = 0;
  virtual void begin(BlockRequest request) = 0;
};

struct BlockFileOptions {
  bool direct = true;    ///< past the system's cache, where the filesystem allows it
  bool io_uring = true;  ///< where the library was there to build with, and the system allows it; else threads
  int requests = 32;      ///< at most this many are begun at a time; a disk that answers in bursts needs many
};

/// A new file in `folder`, which is made if it is missing. It has no name: nobody else can open it, and the system
/// frees its blocks when the process ends, however it ends. So there is nothing to clean up, several runs may share a
/// folder, and nothing happens to the file when the folder is removed. (O_TMPFILE; where a filesystem lacks it, a file
/// of a random name that is removed as soon as it is open: only a process that is killed between the two leaves it
/// behind, empty.)
///
/// Requests go through io_uring, with one thread that waits for them, or through as many threads as `requests`.
/// Without O_DIRECT they go through the system's cache, from which they are dropped again at once, in threads.
/// Errors ("disk"): the folder cannot be made, is a file, or nothing can be written there; each with path and remedy.
std::unique_ptr<BlockFile> open_scratch_file(const std::string& folder, const BlockFileOptions& options);

}  // namespace colossal::memory
