// Worlds whose groups change or drop messages. Tests of faults and of the order of calls use them between a program and
// its transport.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/decorators/decorator.h"

namespace colossal::test {

/// A world that applies `decorate` to every group of several ranks of `inner`.
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

/// Returns a world that loses one message: zeros arrive in place of message number `lost`, counted from 0, of those
/// that rank 0 of `world` sends along `axis` one way (comm::Mesh::one_way).
DecoratedWorld losing_a_transfer(comm::World& world, int lost, const std::string& axis = "pipeline");

/// Returns a world in which zeros replace the input of call number `lost`, counted from 0, among all sends and
/// collectives of rank 0. Rank 0 itself gets zeros, too.
DecoratedWorld losing_a_message(comm::World& world, int lost);

/// Returns a world in which transfer number `kept`, counted from 0, of those that each rank receives has no effect. The
/// rank gets the tensor that it sent last instead, as in a ring that misses a rotation. All ranks of `world` must use
/// the same number.
DecoratedWorld short_of_a_rotation(comm::World& world, int kept);

/// Returns a world whose collectives do nothing, as with RankOptions::collectives_off. Sends between ranks still
/// arrive.
DecoratedWorld without_collectives(comm::World& world);

}  // namespace colossal::test
