// A world whose groups are not quite what they seem: what tests of faults and of the order of calls put between a
// program and its transport.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/decorators/decorator.h"

namespace colossal::test {

/// `inner` with every group of several ranks handed through `decorate`.
class DecoratedWorld final : public comm::WorldDecorator {
 public:
  using Decorate = std::function<std::shared_ptr<comm::Group>(std::shared_ptr<comm::Group>)>;
  DecoratedWorld(comm::World& inner, Decorate decorate) : WorldDecorator(inner), decorate_(std::move(decorate)) {}
  std::shared_ptr<comm::Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                          const std::string& channel = "") override {
    auto group = WorldDecorator::make_group(name, ranks, channel);
    return ranks.size() > 1 ? decorate_(std::move(group)) : group;
  }

 private:
  const Decorate decorate_;
};

/// What rank 0 of `world` sends along `axis` one way (comm::Mesh::one_way) as its message number `lost`, counted from
/// 0, arrives as zeros.
DecoratedWorld losing_a_transfer(comm::World& world, int lost, const std::string& axis = "pipeline");

/// What rank 0 of `world` gives as number `lost`, counted from 0, of all its sends and collectives arrives as zeros,
/// at itself too.
DecoratedWorld losing_a_message(comm::World& world, int lost);

/// Rings in which the transfer number `kept` of those that each rank receives, counted from 0, brings nothing: each has
/// once more what it sent last. All ranks of `world` must be given the same number.
DecoratedWorld short_of_a_rotation(comm::World& world, int kept);

/// Collectives do nothing, as with RankOptions::collectives_off, but what ranks send one another arrives.
DecoratedWorld without_collectives(comm::World& world);

}  // namespace colossal::test
