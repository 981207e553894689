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

/// Size of a disk block in bytes: offsets, sizes and addresses of requests are multiples of it.
inline constexpr int64_t kBlock = 4096;

/// Returns `bytes` rounded up to a multiple of kBlock.
constexpr int64_t whole_blocks(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

struct BlockRequest {
  enum class Kind { Read, Write } kind;
  char* memory;
  int64_t bytes, offset;
  /// Called once when the request is over, by a thread of the file, or by begin() if the system refuses it at once. The
  /// argument is the number of bytes that were transferred, which may be fewer than requested, or a negative errno. The
  /// function may start other requests, and must not throw.
  std::function<void(int64_t result)> done;
};

/// The system calls that DiskSpace uses. Tests replace them to get a disk that fails.
/// Thread safety: several threads may start requests. The destructor must run when no request is running.
class BlockFile {
 public:
  virtual ~BlockFile() = default;
  /// Returns the folder, for messages; the file itself has no name.
  virtual const std::string& folder() const = 0;
  /// Returns how requests reach the system: "io_uring" or "threads".
  virtual const char* engine() const = 0;
  /// Returns whether requests bypass the system's cache (O_DIRECT).
  virtual bool is_direct() const = 0;
  /// Returns whether the file's blocks are in host memory (tmpfs), so that it is on no disk at all.
  virtual bool is_in_memory() const = 0;
  /// Grows the file to `bytes`, which the disk reserves for it, so that no later write finds the disk full. On a
  /// filesystem that cannot reserve space, a later write may. Returns 0 or an errno; after an error the file is
  /// unchanged. One call at a time.
  virtual int reserve(int64_t bytes) = 0;
  /// Returns the bytes of the filesystem that are free for this process.
  virtual int64_t free_bytes() const = 0;
  /// Starts a request. Its memory must stay valid until `done` is called.
  virtual void begin(BlockRequest request) = 0;
};

struct BlockFileOptions {
  bool direct = true;    ///< bypasses the system's cache, if the filesystem allows it
  bool io_uring = true;  ///< uses io_uring if requests are direct and the build and system have it; else threads
  int requests = 32;     ///< maximum number of requests at a time; a disk that completes requests in bursts needs many
};

/// Makes a new file in `folder`, which is created if it is missing. The file has no name, so no other process can open
/// it. The system frees its blocks when the process ends, however it ends. No cleanup is necessary, several runs may
/// share a folder, and removing the folder does not affect the file.
///
/// The file is made with O_TMPFILE. If a filesystem does not have that, it gets a random name that is removed as soon
/// as the file is open. Only a process that is killed between these two steps leaves a file, which is empty.
///
/// Requests go through io_uring, with one thread that waits for them, or through as many threads as `requests`. Without
/// O_DIRECT, threads send them through the system's cache and drop them from it at once.
/// Errors ("disk"): the folder cannot be created, is a file, or is not writable (each message has the path and the
/// remedy); options.requests is below 1.
std::unique_ptr<BlockFile> open_scratch_file(const std::string& folder, const BlockFileOptions& options);

/// Makes a file that is on no disk and grows without limit, for a DiskSpace of tensors on meta, which transfers no
/// bytes. `folder` is not created. A request of a tensor with memory ends in EBADF.
std::unique_ptr<BlockFile> make_unwritten_file(std::string folder);

}  // namespace colossal::memory
