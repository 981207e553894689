// Counts what a group sends, by the ring formulas of Group's contract.
#pragma once
#include <memory>

#include "colossal/comm/group.h"
#include "colossal/comm/traffic.h"

namespace colossal::comm {

/// Adds one entry to `traffic` per call, under the group's name, before the call is made. The arguments are checked
/// first: a call that is refused is not counted. send counts numel(x); recv and barrier count calls alone.
class CountingGroup : public Group {
 public:
  CountingGroup(std::shared_ptr<Group> inner, Traffic& traffic) : inner_(std::move(inner)), traffic_(traffic) {}

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
  std::shared_ptr<Group> inner_;
  Traffic& traffic_;
};

}  // namespace colossal::comm
