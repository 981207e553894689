// Shows every call of a group to the watchdog of its rank.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/decorators/watchdog.h"
#include "colossal/comm/group.h"

namespace colossal::comm {

/// After a verdict every call and every wait throws Error("watchdog", verdict), whatever the transport said.
class WatchedGroup : public Group {
 public:
  /// `handle` comes from watchdog->add_group. `traffic` tells the phase.
  WatchedGroup(std::shared_ptr<Group> inner, std::shared_ptr<Watchdog> watchdog, int handle, const Traffic& traffic)
      : inner_(std::move(inner)), watchdog_(std::move(watchdog)), handle_(handle), traffic_(traffic) {}

  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Work all_reduce(at::Tensor& x, Reduce op) override;
  Work all_gather(at::Tensor& out, const at::Tensor& in) override;
  Work reduce_scatter(at::Tensor& out, const at::Tensor& in, Reduce op) override;
  Work all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                  const std::vector<int64_t>& in_rows) override;
  Work broadcast(at::Tensor& x, int root) override;
  Work reduce(at::Tensor& x, int root, Reduce op) override;
  Work send(const at::Tensor& x, int to) override;
  Work recv(at::Tensor& x, int from) override;
  Work barrier() override;

 private:
  template <class Start>
  Work watch(Collective collective, int64_t bytes, int peer, const Start& start);

  std::shared_ptr<Group> inner_;
  std::shared_ptr<Watchdog> watchdog_;
  const int handle_;
  const Traffic& traffic_;
};

}  // namespace colossal::comm
