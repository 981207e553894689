// Space for the bytes of tensors on a disk, in one file per process.
//
//   memory::DiskSpace disk("scratch/");
//   const at::Tensor tensor = memory::empty_aligned({1 << 20}, at::kFloat);
//   memory::DiskExtent extent = disk.allocate(tensor.nbytes());
//   memory::DiskTransfer out = disk.write(extent, tensor);   // it is written while the caller computes
//   out.wait();                                              // the values are on the disk: the tensor may change
//   disk.read(extent, tensor).wait();                        // the tensor has the values again
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "colossal/memory/tiers/block_file.h"

namespace colossal::memory {

/// Keeps track of the free parts of a growing range.
///
///   memory::FreeSpace space;                          // has no length: space.take(100) is none
///   space.grow(256);
///   const std::optional<int64_t> at = space.take(100);   // 0, and [100, 256) is free
///   space.give_back(*at, 100);
///
/// A best-fit allocator: it takes the smallest free run that is large enough, the first one of several. Free neighbours
/// are always joined.
/// Cost: the logarithm of the number of free runs. Thread safety: none.
class FreeSpace {
 public:
  /// Takes `bytes` (> 0) and returns their offset; none if no free run is long enough.
  std::optional<int64_t> take(int64_t bytes);
  /// Frees `bytes` at `offset`, which take() returned.
  void give_back(int64_t offset, int64_t bytes);
  /// Adds `bytes` free bytes at the end.
  void grow(int64_t bytes);

  int64_t end() const { return end_; }
  /// Returns the free bytes just before the end, with which a longer run would start after grow().
  int64_t tail() const;
  int64_t free_bytes() const { return free_; }

 private:
  using Run = std::map<int64_t, int64_t>::iterator;
  void remove(Run run);
  void add(int64_t offset, int64_t bytes);

  std::map<int64_t, int64_t> runs_;                // offset to bytes
  std::set<std::pair<int64_t, int64_t>> by_size_;  // bytes, offset
  int64_t end_ = 0, free_ = 0;
};

struct DiskOptions {
  BlockFileOptions file{};
  int64_t reserve_bytes = 0;        ///< bytes taken from the disk at construction; the file takes more when needed
  int64_t request_bytes = 4 << 20;  ///< bytes of the requests that make up a transfer; a multiple of kBlock
};

class DiskTransfers;
struct DiskExtentState;

/// Space on the disk for the bytes of one tensor. Move-only. The destructor frees the space after all transfers that
/// were begun; it does not wait for them.
class DiskExtent {
 public:
  DiskExtent() = default;  ///< an extent without space
  DiskExtent(DiskExtent&&) noexcept = default;
  DiskExtent& operator=(DiskExtent&&) noexcept = default;
  explicit operator bool() const { return state_ != nullptr; }
  int64_t bytes() const;  ///< bytes as requested; on the disk it takes whole_blocks() of them

 private:
  friend class DiskSpace;
  explicit DiskExtent(std::shared_ptr<DiskExtentState> state) : state_(std::move(state)) {}
  std::shared_ptr<DiskExtentState> state_;
};

/// Handle to a running read or write. The transfer goes on if no handle is left.
class DiskTransfer {
 public:
  DiskTransfer() = default;  ///< an empty transfer, which is over
  /// Returns true if wait() would return or throw at once.
  bool is_over() const;
  /// Waits until all bytes are transferred. Any thread may call it, any number of times.
  /// Errors ("disk"): an error of the disk; fewer bytes than requested, at the end of the file; bytes whose checksums
  /// differ from the checksums at the write. A read also throws the error of the write before it. Each message has the
  /// folder, the offset in the file and the remedy.
  void wait() const;

 private:
  friend class DiskSpace;
  explicit DiskTransfer(std::shared_future<void> over) : over_(std::move(over)) {}
  std::shared_future<void> over_;
};

/// A file that grows as extents need it, by at least 64 MiB if the disk has them, and never shrinks. Freed extents are
/// joined with free neighbours and used again, the smallest one that fits first. See open_scratch_file() for where the
/// file is and why nothing remains of it.
///
/// Tensors on meta have no values to transfer: their transfers are over at once and count like all others. With
/// make_unwritten_file() a space for such tensors needs no disk.
///
/// Memory:        no copies: the disk reads and writes the tensors' own memory; 8 bytes per request of each extent, for
///                checksums.
/// Cost:          a transfer is cut into requests. BlockFileOptions::requests of them run at a time, in the order in
///                which the transfers were begun. Threads of this class compute checksums (XXH3).
/// Thread safety: any thread may call any member. Transfers of one extent run one after the other, in the order in
///                which they were begun. The space must outlive its extents, and its destructor waits for transfers.
class DiskSpace {
 public:
  /// Creates the file in `folder`. Errors ("disk"): see open_scratch_file(); no room for `reserve_bytes`.
  explicit DiskSpace(const std::string& folder, const DiskOptions& options = {});
  /// Uses a file of the caller.
  DiskSpace(std::unique_ptr<BlockFile> file, const DiskOptions& options);
  ~DiskSpace();
  DiskSpace(const DiskSpace&) = delete;
  DiskSpace& operator=(const DiskSpace&) = delete;

  const BlockFile& file() const { return *file_; }

  /// Allocates `bytes` on the disk, so that later writes cannot find it full. Errors ("disk"): the disk is full; the
  /// message has the bytes wanted, the bytes that are free, and the remedy.
  DiskExtent allocate(int64_t bytes);

  /// Starts to write the values of `from`, a contiguous host tensor of extent.bytes(). It must start at a multiple of
  /// kBlock, and its storage must cover whole_blocks() of its bytes, as empty_aligned() makes it. The tensor is kept
  /// alive until the transfer is over, and no code may write to it before.
  /// Errors ("disk"): a tensor of another kind; an extent without space.
  DiskTransfer write(const DiskExtent& extent, const at::Tensor& from);
  /// Starts to read the values that were written last into `to`, a tensor of the kind that write() takes. No code may
  /// use `to` before the transfer is over. Errors ("disk"): as write(); an extent that was never written.
  DiskTransfer read(const DiskExtent& extent, const at::Tensor& to);

  struct Counts {
    int64_t reads = 0, writes = 0;              ///< finished transfers, without failed ones
    int64_t bytes_read = 0, bytes_written = 0;  ///< bytes of these transfers, in whole blocks
    double busy_seconds = 0;                    ///< seconds in which at least one transfer was running
    int64_t used_bytes = 0, file_bytes = 0;     ///< bytes of extents, and bytes that the file has on the disk
  };
  Counts counts() const;

 private:
  void grow(int64_t bytes);

  std::unique_ptr<BlockFile> file_;
  mutable std::mutex mutex_;
  FreeSpace space_;
  std::unique_ptr<DiskTransfers> transfers_;
};

}  // namespace colossal::memory
