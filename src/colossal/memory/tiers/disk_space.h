// Space for the bytes of tensors on a disk, in one file of a rank's process.
//
//   memory::DiskSpace disk("scratch/");
//   const at::Tensor tensor = memory::empty_aligned({1 << 20}, at::kFloat);
//   memory::DiskExtent extent = disk.allocate(tensor.nbytes());
//   memory::DiskTransfer out = disk.write(extent, tensor);   // it travels while somebody computes
//   out.wait();                                              // its values are on the disk: they may be overwritten
//   disk.read(extent, tensor).wait();                        // and are back
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "colossal/memory/tiers/block_file.h"
#include "colossal/memory/tiers/free_space.h"

namespace colossal::memory {

struct DiskOptions {
  BlockFileOptions file{};
  int64_t reserve_bytes = 0;        ///< taken from the disk at once; more is taken when it is needed
  int64_t request_bytes = 4 << 20;  ///< transfers are made of requests of this size; a multiple of kBlock
};

class DiskTransfers;
struct DiskExtentState;

/// A place on the disk for the bytes of one tensor: move-only. Its destructor frees it for others, once the transfers
/// that were begun are over, for which it does not wait.
class DiskExtent {
 public:
  DiskExtent() = default;  ///< none
  DiskExtent(DiskExtent&&) noexcept = default;
  DiskExtent& operator=(DiskExtent&&) noexcept = default;
  explicit operator bool() const { return state_ != nullptr; }
  int64_t bytes() const;  ///< as asked for; on the disk it takes whole_blocks() of them

 private:
  friend class DiskSpace;
  explicit DiskExtent(std::shared_ptr<DiskExtentState> state) : state_(std::move(state)) {}
  std::shared_ptr<DiskExtentState> state_;
};

/// A read or a write on its way: a handle. It goes on when nobody has one any more.
class DiskTransfer {
 public:
  DiskTransfer() = default;  ///< of nothing, which is over
  /// wait() would return, or throw, at once.
  bool is_over() const;
  /// Waits until all bytes are transferred. Any thread may call it, any number of times.
  /// Errors ("disk"): an error of the disk; fewer bytes than were requested, at the end of the file; bytes whose
  /// checksums differ from those of the bytes written. A read also reports what went wrong with the write before it.
  /// Each message has the folder, the offset in the file and the remedy.
  void wait() const;

 private:
  friend class DiskSpace;
  explicit DiskTransfer(std::shared_future<void> over) : over_(std::move(over)) {}
  std::shared_future<void> over_;
};

/// A file that grows as extents need it, by 64 MiB at least where the disk has them, and never shrinks: freed extents
/// are joined with free neighbours and used again, the smallest that fits first. See open_scratch_file() for where the
/// file is and why nothing is left of it.
///
/// Memory:        no copies: tensors travel from and to where they are; 8 bytes a request of extents, for checksums.
/// Cost:          a transfer is cut into requests, of which BlockFileOptions::requests travel at a time, in the order
///                in which transfers were begun. Checksums (XXH3) are computed by the threads of this class.
/// Thread safety: any thread may call any member. Transfers of one extent are carried out in the order in which they
///                were begun, each when the one before is over. It outlives its extents, and its destructor waits for
///                transfers.
class DiskSpace {
 public:
  /// Errors ("disk"): those of open_scratch_file(); there is no room for `reserve_bytes`.
  explicit DiskSpace(const std::string& folder, const DiskOptions& options = {});
  /// In a file of the caller's.
  DiskSpace(std::unique_ptr<BlockFile> file, const DiskOptions& options);
  ~DiskSpace();
  DiskSpace(const DiskSpace&) = delete;
  DiskSpace& operator=(const DiskSpace&) = delete;

  const BlockFile& file() const { return *file_; }

  /// Room for `bytes`, which later writes cannot find missing. Errors ("disk"): the disk is full, with the bytes
  /// wanted, those that are free, and the remedy.
  DiskExtent allocate(int64_t bytes);

  /// Begins to write the values of `from`, a contiguous tensor on the host of extent.bytes() that begins at a multiple
  /// of kBlock and whose storage reaches to whole_blocks() of them, as empty_aligned() makes it. Nobody writes to it
  /// before the transfer is over; until then it is held.
  /// Errors ("disk"): a tensor of another kind; an extent that has no place.
  DiskTransfer write(const DiskExtent& extent, const at::Tensor& from);
  /// Begins to read what was written last into `to`, a tensor of that kind, which nobody uses before the transfer is
  /// over. Errors likewise; and nothing was written to the extent yet.
  DiskTransfer read(const DiskExtent& extent, const at::Tensor& to);

  struct Counts {
    int64_t reads = 0, writes = 0;              ///< transfers that are over, without those that failed
    int64_t bytes_read = 0, bytes_written = 0;  ///< of them, in whole blocks
    double busy_seconds = 0;                    ///< in which some transfer was under way
    int64_t used_bytes = 0, file_bytes = 0;     ///< in extents, and in all that the file has of the disk
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
