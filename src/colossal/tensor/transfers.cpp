#include "colossal/tensor/transfers.h"

#include <atomic>
#include <utility>

#include "colossal/tensor/flops.h"

namespace colossal::tensor {
namespace {

/// The side stream that copies of this thread belong to; null = none.
TransfersAside*& current_aside() {
  thread_local TransfersAside* aside = nullptr;
  return aside;
}

Transfer announce_transfer(Operation what) {
  static std::atomic<int64_t> count{0};
  what.transfer = ++count;
  announce_flops(0, what);
  return {what.transfer};
}

}  // namespace

Transfer announce_copy_to_host(int64_t bytes) {
  if (!are_flops_counted()) return {};
  return announce_transfer({.kind = Operation::Kind::HostCopy, .read = static_cast<double>(bytes)});
}

Transfer announce_disk_read(int64_t bytes) {
  if (!are_flops_counted()) return {};
  return announce_transfer({.kind = Operation::Kind::Disk, .read = static_cast<double>(bytes)});
}

Transfer announce_disk_write(int64_t bytes) {
  if (!are_flops_counted()) return {};
  return announce_transfer({.kind = Operation::Kind::Disk, .written = static_cast<double>(bytes)});
}

void announce_copy_to_device(int64_t bytes) {
  if (!are_flops_counted()) return;
  Transfer copy = announce_transfer({.kind = Operation::Kind::HostCopy, .written = static_cast<double>(bytes)});
  if (current_aside())
    current_aside()->under_way_.push_back(copy);
  else
    announce_wait(copy);
}

void announce_wait(Transfer& transfer) {
  const int64_t number = std::exchange(transfer.number, 0);
  if (number != 0) announce_flops(0, {.kind = Operation::Kind::Wait, .transfer = number});
}

TransfersAside::Scope::Scope(TransfersAside& aside) : before_(std::exchange(current_aside(), &aside)) {}
TransfersAside::Scope::~Scope() { current_aside() = before_; }

void TransfersAside::wait() {
  for (Transfer& transfer : std::exchange(under_way_, {})) announce_wait(transfer);
}

}  // namespace colossal::tensor
