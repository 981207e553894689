// A home whose tensors lie in host memory as far as a budget allows, and on a disk beyond it.
//
//   auto home = std::make_shared<memory::TieredHome>(memory::TieredHome::Options{
//       .host_bytes = int64_t{8} << 30, .disk = std::make_shared<memory::DiskSpace>("scratch/"),
//       .eviction = memory::make_eviction("auto")});
//   options.home = home;                     // memory::ChunkOptions
//   for (...) {
//     home->begin_step();
//     train();                               // brings parameters, gradients and states, always in one order
//     home->end_step();
//   }
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "colossal/memory/home.h"
#include "colossal/memory/tiers/disk_space.h"
#include "colossal/memory/tiers/eviction.h"
#include "colossal/memory/tiers/tier_event.h"

namespace colossal::memory {

struct TieredHomeState;

/// Keeps tensors in aligned buffers of the host, from which the eviction policy takes those that leave for the disk
/// when another needs the room. A tensor that is wanted is read into a buffer, where whoever has it works with it; it
/// is written back when it leaves and was changed. The order of uses is recorded in a step and foretold in the next:
/// tensors that come next are read while the present one is worked with, and what will have to leave is written ahead.
/// A tensor that is foretold never displaces one that is used before it; one that somebody expects, where nothing is
/// foretold, displaces what the policy says.
///
/// Memory:        host_bytes for all buffers, those of transfers too. What is lent at one time, and one tensor more,
///                must fit. A single tensor that keep() is given and that does not is there until it is on the disk.
/// Cost:          of a call the logarithm of the number of tensors, and a look at each of the uses that `ahead`
///                reaches.
/// Errors ("memory"): of keep(), bring() and replace(): the budget is smaller than what is lent and the tensor
///                together, with the budget that would do; the disk's; what went wrong with any tensor on its way out.
/// Thread safety: that of Home. Who waits for the disk makes others wait; copies of Kept::copy_to() go side by side.
///                With a disk a thread of its own reads ahead.
class TieredHome final : public Home {
 public:
  struct Options {
    int64_t host_bytes = std::numeric_limits<int64_t>::max();
    std::shared_ptr<DiskSpace> disk{};     ///< null: all must fit into the host's budget
    std::unique_ptr<Eviction> eviction{};  ///< null: "auto"
    double ahead = 0.25;                   ///< share of the budget for tensors that are read before they are wanted
    /// That the tensors are of which come here, and go. Of an accelerator: buffers are pinned, and neither it nor the
    /// host waits for what it copies to them, at most four tensors at a time
    at::Device device = at::kCPU;
    /// What the user may change beside the budget, a clause: the end of the message that names the one that would do
    std::string remedy{};
  };
  explicit TieredHome(Options options);
  ~TieredHome() override;

  /// Tensors of the device are copied to the host and lent there. Their memory is freed when that is over, which the
  /// host looks after whenever it is asked for something.
  std::unique_ptr<Kept> keep(const at::Tensor& tensor) override;
  at::Device lends_on(at::Device) const override { return at::kCPU; }

  /// What is used between the two is one step, whose order the next one is expected to keep. Uses outside of steps
  /// foretell nothing.
  void begin_step();
  void end_step();

  int64_t host_bytes() const;

  const DiskSpace* disk() const;  ///< null: none

  struct Counts {
    int64_t host_bytes = 0;                     ///< of tensors in host memory
    int64_t peak_host_bytes = 0;                ///< of all buffers, idle ones too
    int64_t disk_bytes = 0;                     ///< of tensors that are on the disk alone
    int64_t bytes_read = 0, bytes_written = 0;  ///< between the two
    int64_t bytes_given = 0;                    ///< by keep() and replace(): what came from where somebody computes
    int64_t evictions = 0;                      ///< tensors that left the host
    int64_t reads = 0, reads_ahead = 0;         ///< tensors that came back, and those of them before they were wanted
  };
  Counts counts() const;

  /// What happens from now on is remembered, until end_record() returns it: 24 bytes a use, and for what moves.
  /// Nothing else changes by it.
  void begin_record() const;
  std::vector<TierEvent> end_record() const;

 private:
  std::unique_ptr<TieredHomeState> state_;
};

}  // namespace colossal::memory
