#include "colossal/parallel/sequence/rings.h"

#include <ATen/ATen.h>

#include <optional>

namespace colossal::parallel {

Rotation::Rotation(const RingOfRanks& ring, const at::Tensor& part) : sent_(part), received_(at::empty_like(part)) {
  sending_ = ring.send(sent_);
  receiving_ = ring.receive(received_);
}

RingOfRanks ring_along(comm::Mesh& mesh, const std::string& axis) {
  RingOfRanks ring{mesh.size(axis), mesh.index(axis)};
  // All ranks use one order, in which both members of a pair reach it without waiting for others: pairs with an even
  // first rank, pairs with an odd one, and the pair that closes the ring.
  for (const int round : {0, 1, 2})
    for (int from = 0; ring.size > 1 && from < ring.size; ++from) {
      const int to = (from + 1) % ring.size;
      if (round != (to == 0 ? 2 : from % 2)) continue;
      if (from == ring.rank) ring.next = &mesh.one_way(axis, from, to);
      if (to == ring.rank) ring.previous = &mesh.one_way(axis, from, to);
    }
  return ring;
}

DoubleRing double_ring(comm::Mesh& mesh, const SequenceConfig& config) {
  const std::vector<std::string> axes = ring_axes(config);
  DoubleRing ring{ring_along(mesh, axes.front()), {}};
  if (axes.size() > 1) ring.inner = ring_along(mesh, axes.back());
  return ring;
}

void DoubleRing::for_parts(const at::Tensor& own, const Use& use) const {
  at::Tensor part = own;
  for (int turn = 0; turn < outer.size; ++turn) {
    std::optional<Rotation> next_turn;
    if (turn + 1 < outer.size) next_turn.emplace(outer, part);
    for (int step = 0; step < inner.size; ++step) {
      std::optional<Rotation> next;
      if (step + 1 < inner.size) next.emplace(inner, part);
      use(part, source(turn * inner.size + step));
      if (next) part = next->wait();
    }
    if (next_turn) part = next_turn->wait();
  }
}

// A part's sum goes to the next rank after this rank has added its contribution. The sum follows the part itself: a
// rank sends a part, then its sum, then the next part. Both ends of a connection thus know the order.
at::Tensor DoubleRing::sums_of_parts(const at::Tensor& own, at::ScalarType type, const Add& add) const {
  const auto as_sum = [&] { return at::empty(own.sizes(), own.options().dtype(type)); };
  at::Tensor part = own, arriving, sum;
  comm::Work receiving, sending;
  for (int turn = 0; turn < outer.size; ++turn) {
    if (turn > 0) {
      arriving = as_sum();
      receiving = outer.receive(arriving);
    }
    std::optional<Rotation> next_turn;
    if (turn + 1 < outer.size) next_turn.emplace(outer, part);
    const at::Tensor of_turn = sum_of_turn(turn, part, type, add);
    receiving.wait();
    sending.wait();  // waits for the previous sum, whose buffer is now sent
    sum = turn > 0 ? of_turn.add_(arriving) : of_turn;
    if (outer.size > 1) sending = outer.send(sum);
    if (next_turn) part = next_turn->wait();
  }
  if (outer.size == 1) return sum;
  at::Tensor home = as_sum();
  outer.receive(home).wait();
  sending.wait();
  return home;
}

/// Returns the sum of the inner ring's contributions for `first`, the part with which this rank starts the turn. This
/// rank's contribution waits here for the others, which arrive with the last message of the turn.
at::Tensor DoubleRing::sum_of_turn(int turn, const at::Tensor& first, at::ScalarType type, const Add& add) const {
  const auto as_sum = [&] { return at::empty(first.sizes(), first.options().dtype(type)); };
  std::optional<Rotation> next;
  if (inner.size > 1) next.emplace(inner, first);
  at::Tensor own = add(first, source(turn * inner.size));
  if (inner.size == 1) return own;
  at::Tensor arriving, sum;
  comm::Work receiving, sending;
  for (int step = 1; step < inner.size; ++step) {
    const at::Tensor part = next->wait();
    next.reset();
    if (step > 1) {
      arriving = as_sum();
      receiving = inner.receive(arriving);
    }
    if (step + 1 < inner.size) next.emplace(inner, part);
    const at::Tensor added = add(part, source(turn * inner.size + step));
    receiving.wait();
    sending.wait();
    sum = step > 1 ? added.add_(arriving) : added;
    sending = inner.send(sum);
  }
  at::Tensor of_others = as_sum();
  inner.receive(of_others).wait();
  sending.wait();
  return own.add_(of_others);
}

}  // namespace colossal::parallel
