// A world whose groups are not quite what they seem: what tests of faults and of the order of calls put between a
// program and its transport.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/world.h"

namespace colossal::test {

/// Passes every call on: tests override what they change.
class GroupDecorator : public comm::Group {
 public:
  explicit GroupDecorator(std::shared_ptr<comm::Group> inner) : inner_(std::move(inner)) {}
  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  comm::Work all_reduce(at::Tensor& x, comm::Reduce op) override { return inner_->all_reduce(x, op); }
  comm::Work all_gather(at::Tensor& out, const at::Tensor& in) override { return inner_->all_gather(out, in); }
  comm::Work reduce_scatter(at::Tensor& out, const at::Tensor& in, comm::Reduce op) override {
    return inner_->reduce_scatter(out, in, op);
  }
  comm::Work all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                        const std::vector<int64_t>& in_rows) override {
    return inner_->all_to_all(out, in, out_rows, in_rows);
  }
  comm::Work broadcast(at::Tensor& x, int root) override { return inner_->broadcast(x, root); }
  comm::Work reduce(at::Tensor& x, int root, comm::Reduce op) override { return inner_->reduce(x, root, op); }
  comm::Work send(const at::Tensor& x, int to) override { return inner_->send(x, to); }
  comm::Work recv(at::Tensor& x, int from) override { return inner_->recv(x, from); }
  comm::Work barrier() override { return inner_->barrier(); }

 protected:
  std::shared_ptr<comm::Group> inner_;
};

/// `inner` with every group of several ranks handed through `decorate`.
class DecoratedWorld final : public comm::World {
 public:
  using Decorate = std::function<std::shared_ptr<comm::Group>(std::shared_ptr<comm::Group>)>;
  DecoratedWorld(comm::World& inner, Decorate decorate) : inner_(inner), decorate_(std::move(decorate)) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::shared_ptr<comm::Group> make_group(const std::string& name, const std::vector<int>& ranks) override {
    auto group = inner_.make_group(name, ranks);
    return ranks.size() > 1 ? decorate_(std::move(group)) : group;
  }
  comm::Traffic& traffic() override { return inner_.traffic(); }
  std::shared_ptr<void> busy(const std::string& what) override { return inner_.busy(what); }
  void on_stall(std::function<void(const comm::Stall&)> listener) override { inner_.on_stall(std::move(listener)); }
  std::string backend() const override { return inner_.backend(); }

 private:
  comm::World& inner_;
  const Decorate decorate_;
};

/// What rank 0 of `world` sends other stages as its message number `lost`, counted from 0, arrives as zeros.
DecoratedWorld losing_a_transfer(comm::World& world, int lost);

/// Collectives do nothing, as with RankOptions::collectives_off, but what ranks send one another arrives.
DecoratedWorld without_collectives(comm::World& world);

}  // namespace colossal::test
