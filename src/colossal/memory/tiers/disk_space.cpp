#include "colossal/memory/tiers/disk_space.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <optional>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/tiers/disk_transfers.h"

namespace colossal::memory {

std::optional<int64_t> FreeSpace::take(int64_t bytes) {
  const auto fitting = by_size_.lower_bound({bytes, 0});
  if (fitting == by_size_.end()) return std::nullopt;
  const auto [size, offset] = *fitting;
  remove(runs_.find(offset));
  if (size > bytes) add(offset + bytes, size - bytes);
  return offset;
}

void FreeSpace::give_back(int64_t offset, int64_t bytes) {
  const auto after = runs_.lower_bound(offset);
  if (after != runs_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      remove(before);
    }
  }
  if (after != runs_.end() && after->first == offset + bytes) {
    bytes += after->second;
    remove(after);
  }
  add(offset, bytes);
}

void FreeSpace::grow(int64_t bytes) {
  end_ += bytes;
  give_back(end_ - bytes, bytes);
}

int64_t FreeSpace::tail() const {
  if (runs_.empty()) return 0;
  const auto& [offset, bytes] = *runs_.rbegin();
  return offset + bytes == end_ ? bytes : 0;
}

void FreeSpace::remove(Run run) {
  free_ -= run->second;
  by_size_.erase({run->second, run->first});
  runs_.erase(run);
}

void FreeSpace::add(int64_t offset, int64_t bytes) {
  free_ += bytes;
  by_size_.insert({bytes, offset});
  runs_.emplace(offset, bytes);
}

namespace {

constexpr int64_t kGrowth = 64 << 20;

}  // namespace

int64_t DiskExtent::bytes() const { return state_ ? state_->bytes : 0; }

bool DiskTransfer::is_over() const {
  return !over_.valid() || over_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void DiskTransfer::wait() const {
  if (over_.valid()) over_.get();
}

DiskSpace::DiskSpace(const std::string& folder, const DiskOptions& options)
    : DiskSpace(open_scratch_file(folder, options.file), options) {}

DiskSpace::DiskSpace(std::unique_ptr<BlockFile> file, const DiskOptions& options)
    : file_(std::move(file)), transfers_(std::make_unique<DiskTransfers>(*file_, options)) {
  if (options.reserve_bytes > 0) grow(whole_blocks(options.reserve_bytes));
}

DiskSpace::~DiskSpace() = default;

DiskExtent DiskSpace::allocate(int64_t bytes) {
  require(bytes >= 0, "disk", "an extent must have 0 bytes or more: got ", bytes);
  if (bytes == 0) return DiskExtent(std::make_shared<DiskExtentState>(DiskExtentState{0, 0}));
  const int64_t size = whole_blocks(bytes);
  const std::lock_guard lock(mutex_);
  std::optional<int64_t> offset = space_.take(size);
  if (!offset) {
    grow(size - space_.tail());
    offset = space_.take(size);
  }
  return DiskExtent(std::shared_ptr<DiskExtentState>(new DiskExtentState{*offset, bytes}, [this](auto* state) {
    {
      const std::lock_guard free_lock(mutex_);
      space_.give_back(state->offset, whole_blocks(state->bytes));
    }
    delete state;
  }));
}

void DiskSpace::grow(int64_t bytes) {
  int error = 0;
  for (const int64_t step : {std::max(bytes, kGrowth), bytes}) {
    error = file_->reserve(space_.end() + step);
    if (error == 0) return space_.grow(step);
  }
  const bool is_full = error == ENOSPC || error == EDQUOT;
  const char* remedy = error == EFBIG ? "raise the limit on the size of a file (ulimit -f)"
                                      : "free space on that disk, or name a folder on another disk in memory.disk";
  throw Error("disk", concat("the scratch file in ", file_->folder(), " has ", readable_bytes(space_.end()),
                             " and cannot grow by ", readable_bytes(bytes), ": ",
                             is_full ? "the disk has " : "the file is at a limit, although the disk has ",
                             readable_bytes(file_->free_bytes()), " free (", std::strerror(error), "); ", remedy));
}

DiskTransfer DiskSpace::write(const DiskExtent& extent, const at::Tensor& from) {
  return DiskTransfer(transfers_->begin(BlockRequest::Kind::Write, extent.state_, from));
}

DiskTransfer DiskSpace::read(const DiskExtent& extent, const at::Tensor& to) {
  return DiskTransfer(transfers_->begin(BlockRequest::Kind::Read, extent.state_, to));
}

DiskSpace::Counts DiskSpace::counts() const {
  Counts counts = transfers_->counts();
  const std::lock_guard lock(mutex_);
  counts.file_bytes = space_.end();
  counts.used_bytes = space_.end() - space_.free_bytes();
  return counts;
}

}  // namespace colossal::memory
