// A group whose tensors are on devices, and the links between these devices. A link is made with the first tensor that
// needs it, once for each list of ranks and channel.
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

/// Connects the devices of a list of ranks; collective among them. While it waits for missing ranks, it calls `go_on`
/// now and then, which throws if the run has ended. `member.name` is for messages; `member.key` is unique to the link.
using ConnectDevices =
    std::function<std::shared_ptr<Backend>(const Membership& member, const std::function<void()>& go_on)>;

/// The links between the devices of ranks: NCCL's communicators. Each one costs memory on every device and time on
/// every rank, so groups of the same ranks in the same order share one. Transfers between stages have a separate link,
/// apart from the collectives of the same ranks. A link may run its calls one after another, and a receive that was
/// posted early must not delay a collective. Each channel (World::make_group) also has a separate link. For example,
/// attention exchanges, which backward waits for, do not queue after the gradient reduction of the same ranks.
/// Thread safety: any thread may call. Ranks must issue the calls of all groups of one list and channel in one order.
class DeviceLinks {
 public:
  explicit DeviceLinks(ConnectDevices connect) : connect_(std::move(connect)) {}
  /// Returns the link of the members for transfers or for collectives. The first call for a link connects it, which is
  /// collective among the members. Errors: throws what `connect` or `go_on` throws; a later call tries again.
  std::shared_ptr<Backend> of(const Membership& member, bool transfers, const std::function<void()>& go_on);

 private:
  struct Link {
    std::mutex mutex;
    std::shared_ptr<Backend> backend;
  };
  const ConnectDevices connect_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Link>> links_;  // links by key
};

/// Sends CPU tensors and barriers through `host`, a group of the same ranks, and other tensors through a link.
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
  std::optional<std::string> reason_;                      // reason of an abort; empty = not aborted
  std::vector<std::shared_ptr<Backend>> used_ = {{}, {}};  // links for collectives and for transfers
};

}  // namespace colossal::comm
