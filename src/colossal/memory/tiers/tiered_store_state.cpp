#include "colossal/memory/tiers/tiered_store_state.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::memory {
namespace {

constexpr size_t kCopiesUnderWay = 4;  // the limit that TieredStore::Options::device documents

}  // namespace

TieredStoreState::TieredStoreState(TieredStore::Options options)
    : remedy(std::move(options.remedy)),
      device(options.device),
      budget(options.host_bytes),
      ahead_bytes(static_cast<int64_t>(options.ahead * static_cast<double>(budget))),
      disk(std::move(options.disk)),
      buffers(options.host_bytes, tensor::is_accelerator(options.device), device.is_meta() ? device : at::kCPU),
      may_leave(options.eviction_policy ? std::move(options.eviction_policy) : make_eviction_policy("auto"), timeline) {
  if (tensor::is_accelerator(options.device)) to_host = new_stream(options.device);
  // Transfers of tensors on meta are over at once, so there is nothing to wait for.
  if (disk && !device.is_meta()) follower = std::thread([this] { follow_those_that_leave(); });
}

TieredStoreState::~TieredStoreState() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  leaves.notify_all();
  if (follower.joinable()) follower.join();
}

void TieredStoreState::use(TieredTensor& stored) {
  stored.used = ++clock;
  if (in_step) timeline.used(stored.number);
  settle(stored);
}

void TieredStoreState::end_step() {
  in_step = false;
  timeline.end_pass();
  free_numbers_again();
}

void TieredStoreState::abandon_step() {
  in_step = false;
  timeline.restart_pass();
  free_numbers_again();
}

void TieredStoreState::free_numbers_again() {
  free_numbers.insert(freed_numbers.begin(), freed_numbers.end());
  freed_numbers.clear();
}

void TieredStoreState::wait_for(DiskTransfer transfer) {
  mutex.unlock();
  try {
    transfer.wait();
  } catch (...) {  // end_transfer() throws the error
  }
  mutex.lock();
}

void TieredStoreState::finish(TieredTensor& stored) {
  if (stored.moving == TieredTensor::Moving::No) return;
  tensor::announce_wait(stored.announced_transfer);
  if (!stored.transfer.is_over()) wait_for(stored.transfer);
  end_transfer(stored);
}

void TieredStoreState::end_transfer(TieredTensor& stored) {
  const TieredTensor::Moving moved = std::exchange(stored.moving, TieredTensor::Moving::No);
  const DiskTransfer transfer = std::exchange(stored.transfer, {});
  stored.announced_transfer = {};
  if (moved == TieredTensor::Moving::Out) {
    std::erase(leaving, &stored);
    leaving_bytes -= stored.bytes;
  } else {
    std::erase(arriving, &stored);
  }
  try {
    transfer.wait();
  } catch (...) {
    if (moved == TieredTensor::Moving::In) drop_buffer(stored);
    settle(stored);
    throw;
  }
  if (moved == TieredTensor::Moving::Out) {
    stored.on_disk = true;
    if (!stored.is_asked) drop_buffer(stored);
  }
  settle(stored);
}

void TieredStoreState::fill(TieredTensor& stored, const at::Tensor& tensor) {
  stored.has_values = stored.on_disk = false;  // until all values are copied
  try {
    if (to_host && tensor::is_accelerator(tensor)) {
      // A tensor that waits to be copied keeps device memory, so only a few may wait.
      while (filled.size() >= kCopiesUnderWay) finish_copy(*filled.front());
      stored.copy.to_host(stored.values, tensor, *to_host);
      std::erase(filled, &stored);
      filled.push_back(&stored);
    } else {
      finish_copy(stored);
      mutex.unlock();
      const auto back = c10::make_scope_exit([this] { mutex.lock(); });
      const tensor::HiddenOperators is_announced;
      stored.values.copy_(tensor);
    }
  } catch (...) {
    drop_buffer(stored);
    throw;
  }
  counts.bytes_given += static_cast<int64_t>(tensor.nbytes());
  stored.announced_copy = tensor::announce_copy_to_host(static_cast<int64_t>(tensor.nbytes()));
  if (tensor::is_for_cpu(tensor)) tensor::announce_wait(stored.announced_copy);  // the host copied it itself
  stored.has_values = true;
  record(TierEvent::Kind::Set, stored);
}

void TieredStoreState::finish_copy(TieredTensor& stored) {
  std::erase(filled, &stored);
  tensor::announce_wait(stored.announced_copy);
  stored.copy.wait();
}

void TieredStoreState::drop_buffer(TieredTensor& stored) {
  record(TierEvent::Kind::Leave, stored);
  stored.values.reset();
  stored.announced_copy = {};
  std::erase(filled, &stored);
  buffers.give_back(std::exchange(stored.buffer, {}), std::move(stored.copy));
  settle(stored);
}

void TieredStoreState::give_buffer(TieredTensor& stored) {
  stored.buffer = buffers.take(stored.bytes);
  const int64_t numel = c10::multiply_integers(stored.sizes);
  stored.values = stored.buffer.narrow(0, 0, numel * static_cast<int64_t>(c10::elementSize(stored.dtype)))
                      .view(stored.dtype)
                      .view(stored.sizes);
}

void TieredStoreState::begin_to_read(TieredTensor& stored) {
  give_buffer(stored);
  try {
    stored.transfer = disk->read(stored.extent, stored.values);
  } catch (...) {
    drop_buffer(stored);
    throw;
  }
  stored.moving = TieredTensor::Moving::In;
  arriving.push_back(&stored);
  record(TierEvent::Kind::Read, stored);
  ++counts.reads;
  counts.bytes_read += stored.values.nbytes();
  stored.announced_transfer = tensor::announce_disk_read(static_cast<int64_t>(stored.values.nbytes()));
}

void TieredStoreState::evict(TieredTensor& stored) {
  if (stored.on_disk) {
    ++counts.evictions;
    return drop_buffer(stored);
  }
  const bool fills = stored.copy.fills() || stored.announced_copy.number != 0;
  if (fills) finish_copy(stored);  // a device that only reads the buffer does not disturb the disk
  if (!stored.extent) stored.extent = disk->allocate(static_cast<int64_t>(stored.values.nbytes()));
  stored.transfer = disk->write(stored.extent, stored.values);
  stored.moving = TieredTensor::Moving::Out;
  settle(stored);
  record(TierEvent::Kind::Write, stored);
  leaving.push_back(&stored);
  leaving_bytes += stored.bytes;
  leaves.notify_one();
  ++counts.evictions;
  counts.bytes_written += stored.values.nbytes();
  stored.announced_transfer = tensor::announce_disk_write(static_cast<int64_t>(stored.values.nbytes()));
}

void TieredStoreState::settle(const TieredTensor& stored) {
  // A tensor without elements must not be evicted: its buffer has a block, but its extent has none.
  const bool may = disk && stored.buffer.defined() && stored.values.numel() > 0 && !stored.is_borrowed &&
                   !stored.is_asked && stored.moving == TieredTensor::Moving::No;
  may ? may_leave.put(stored.number, stored.used) : may_leave.remove(stored.number);
}

TieredTensor* TieredStoreState::first_to_leave() {
  const auto number = may_leave.first();
  return number ? all[*number] : nullptr;
}

void TieredStoreState::make_room(int64_t bytes, bool may_exceed) {
  asked_bytes = bytes;
  const auto end = c10::make_scope_exit([this] { asked_bytes = 0; });
  for (;;) {
    announce_room(bytes);
    end_what_is_over();
    if (missing(bytes) <= 0) return;
    if (missing(bytes) - leaving_bytes > 0)
      if (TieredTensor* stored = first_to_leave()) {
        evict(*stored);
        continue;
      }
    if (!leaving.empty()) {
      wait_for(leaving.front()->transfer);
      rethrow();  // the thread may have ended the transfer
      continue;
    }
    if (arriving.empty() && loans > 0) {  // other callers' copies end without help from this one
      loan_ends.wait(mutex);
      continue;
    }
    if (arriving.empty() && may_exceed && disk) return;
    require(!arriving.empty(), "memory", "memory.host = \"", print_bytes(budget),
            "\" is too small: ", readable_bytes(buffers.in_use()), disk ? " are in use at once" : " are stored",
            " and ", readable_bytes(bytes), " more are needed; at least \"", print_bytes(buffers.in_use() + bytes),
            "\" works here", disk ? "" : ", or a folder for the rest (memory.disk)", remedy.empty() ? "" : "; ",
            remedy);
    tensor::announce_wait(arriving.front()->announced_transfer);
    wait_for(arriving.front()->transfer);
    end_transfer(*arriving.front());  // no other code ends this transfer
  }
}

void TieredStoreState::announce_room(int64_t bytes) {
  int64_t lacking = missing(bytes);
  for (TieredTensor* leaves : leaving) {
    if (lacking <= 0) return;
    tensor::announce_wait(leaves->announced_transfer);
    lacking -= leaves->bytes;
  }
}

void TieredStoreState::end_what_is_over() {
  while (!leaving.empty() && !leaving.front()->is_asked && leaving.front()->transfer.is_over())
    end_transfer(*leaving.front());
  while (!filled.empty()) {
    TieredTensor* const first = filled.front();
    filled.pop_front();  // removed first, in case the device is broken and is_over() throws
    if (first->copy.is_over()) continue;
    filled.push_front(first);
    return;
  }
}

void TieredStoreState::read_ahead() {
  try {
    begin_all_ahead();
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
}

void TieredStoreState::begin_all_ahead() {
  end_what_is_over();
  if (all_bytes <= budget) return;  // all tensors are in memory
  int64_t seen = 0;                 // bytes of the tensors considered so far
  int64_t wanted = asked_bytes;     // bytes of those that have no buffer yet
  bool is_full = false;
  ++look;
  for (size_t steps = 1; seen < ahead_bytes; ++steps) {
    const auto number = timeline.ahead(steps);
    if (!number) return;
    TieredTensor* const found = *number < all.size() ? all[*number] : nullptr;
    if (!found) continue;  // the tensor was destroyed; a later tensor will have its number
    TieredTensor& next = *found;
    if (next.is_borrowed || next.is_asked || std::exchange(next.looked_at, look) == look) continue;
    seen += next.bytes;
    if (next.buffer.defined()) continue;
    wanted += next.bytes;
    while (missing(wanted) - leaving_bytes > 0) {
      TieredTensor* leaves = first_to_leave();
      if (!leaves || until(*leaves).value_or(steps + 1) <= steps) return;
      evict(*leaves);
    }
    is_full = is_full || missing(wanted) > 0;  // no room until the evictions are written
    if (is_full || !next.has_values) continue;
    wanted -= next.bytes;
    begin_to_read(next);
    ++counts.reads_ahead;
  }
}

void TieredStoreState::follow_those_that_leave() {
  const c10::OptionalDeviceGuard guard(!tensor::is_accelerator(device) ? std::nullopt : std::make_optional(device));
  std::unique_lock lock(mutex);
  for (;;) {
    leaves.wait(lock, [this] { return stopping || (!leaving.empty() && !leaving.front()->is_asked); });
    if (stopping) return;
    wait_for(leaving.front()->transfer);
    read_ahead();
  }
}

void TieredStoreState::rethrow() {
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

}  // namespace colossal::memory
