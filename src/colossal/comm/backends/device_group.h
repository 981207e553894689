// A group whose tensors lie on devices, and what connects these: made when the first of them travels, once for each
// list of ranks and channel.
//
//   const auto links = std::make_shared<DeviceLinks>(connect);                      // one for all groups of a rank
//   auto group = std::make_shared<DeviceGroup>(member, make_gloo(member), links);
//   group->all_reduce(on_the_host, Reduce::Sum).wait();                            // connects nothing
//   group->all_reduce(on_the_gpu, Reduce::Sum).wait();                             // connects the members' GPUs
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/backends/backend.h"
#include "colossal/comm/rank_world.h"

namespace colossal::comm {

/// Connects the devices of a list of ranks; collective among them. While it waits for ranks that have not come it calls
/// `go_on` now and then, which throws when the run has ended. `member`: `name` is for people, `key` no other link's.
using ConnectDevices =
    std::function<std::shared_ptr<Backend>(const Membership& member, const std::function<void()>& go_on)>;

/// What connects the devices of ranks: NCCL's communicators. Each takes memory of every device and a moment of every
/// rank, so groups of the same ranks in the same order share one. What stages send one another has a link apart from
/// the collectives of the same ranks: a link may run what it is given one after another, and a receive that was posted
/// early must not hold up a collective. So has each channel (World::make_group): what backward waits for, exchanges of
/// attention, does not queue up behind gradients that the same ranks add up meanwhile.
/// Thread safety: any thread may call. Ranks must bring the calls of all groups of one list and channel in one order.
class DeviceLinks {
 public:
  explicit DeviceLinks(ConnectDevices connect) : connect_(std::move(connect)) {}
  /// The link of the members for transfers or for collectives; the first call for it connects, collective among the
  /// members. Errors: what `connect` or `go_on` throws; a later call tries anew.
  std::shared_ptr<Backend> of(const Membership& member, bool transfers, const std::function<void()>& go_on);

 private:
  struct Link {
    std::mutex mutex;
    std::shared_ptr<Backend> backend;
  };
  const ConnectDevices connect_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Link>> links_;  // by key
};

/// Tensors of the CPU, and barriers, travel by `host`, a group of the same ranks; others by a link.
class DeviceGroup : public Backend {
 public:
  DeviceGroup(Membership member, std::shared_ptr<Backend> host, std::shared_ptr<DeviceLinks> links)
      : member_(std::move(member)), host_(std::move(host)), links_(std::move(links)) {}

  const std::string& name() const override { return member_.name; }
  int rank() const override { return member_.rank; }
  int size() const override { return member_.size(); }
  Work issue(const Call& call) override;
  void abort(const std::string& reason) noexcept override;

 private:
  std::shared_ptr<Backend> link_for(const Call& call);
  void go_on();

  const Membership member_;
  const std::shared_ptr<Backend> host_;
  const std::shared_ptr<DeviceLinks> links_;
  std::mutex mutex_;
  std::optional<std::string> reason_;                      // of an abort
  std::vector<std::shared_ptr<Backend>> used_ = {{}, {}};  // links: of collectives, of transfers
};

}  // namespace colossal::comm
