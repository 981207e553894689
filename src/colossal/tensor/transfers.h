// Announces copies between device and host, and reads and writes of a disk, to the listeners of operations. Work may
// overlap with a transfer until it is waited for.
//
//   tensor::Transfer read = tensor::announce_disk_read(bytes);       // starts
//   compute();
//   tensor::announce_wait(read);                                           // compute() overlapped with it
//
//   tensor::TransfersAside aside;                                          // copies of a side stream
//   { const tensor::TransfersAside::Scope scope(aside); copy_to_device(); }
//   compute();
//   aside.wait();
#pragma once
#include <cstdint>
#include <vector>

namespace colossal::tensor {

/// A transfer that was announced. Default: none, which needs no wait.
struct Transfer {
  int64_t number = 0;  ///< unique in the process; 0 = none
};

/// Announce the start of a transfer of `bytes` on this thread: a copy from the device to host memory, a read from a
/// disk, a write to it. Return none without a listener. Cost without a listener: a look at one variable of the thread.
Transfer announce_copy_to_host(int64_t bytes);
Transfer announce_disk_read(int64_t bytes);
Transfer announce_disk_write(int64_t bytes);

/// Announces a copy from host memory to the device, whose later operators need its values. So they wait for it: at
/// once, or when the innermost TransfersAside of this thread waits.
void announce_copy_to_device(int64_t bytes);

/// Announces that the work after this call needs the end of the transfer. Sets `transfer` to none.
void announce_wait(Transfer& transfer);

/// The copies to a device that a side stream of it makes.
class TransfersAside {
 public:
  /// Collects the copies to the device that this thread announces during its lifetime, in `aside`, which must outlive
  /// it. Of nested scopes the innermost applies.
  class Scope {
   public:
    explicit Scope(TransfersAside& aside);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    TransfersAside* const before_;
  };
  /// Announces a wait for each of them.
  void wait();

 private:
  friend void announce_copy_to_device(int64_t);
  std::vector<Transfer> under_way_;
};

}  // namespace colossal::tensor
