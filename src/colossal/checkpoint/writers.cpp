#include "colossal/checkpoint/writers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/checkpoint/box.h"

namespace colossal::checkpoint {
namespace {

using tensor::Place;
constexpr char kPipeline[] = "pipeline";

/// The indices [first, first + count) along an axis at which ranks are looked at.
struct Span {
  int first = 0, count = 1;
};

/// body(place) for every place that differs from `place` along axis a in spans[a], the first axis outermost.
template <class Body>
void for_places(const Place& place, const std::vector<Span>& spans, const Body& body) {
  std::vector<Place::Axis> axes = place.axes();
  const auto visit = [&](const auto& self, size_t a) -> void {
    if (a == axes.size()) return body(Place(axes));
    for (int i = 0; i < spans[a].count; ++i) {
      axes[a].index = spans[a].first + i;
      self(self, a + 1);
    }
  };
  visit(visit, 0);
}

size_t rank_of(const Place& place) {
  size_t rank = 0;
  for (const Place::Axis& axis : place.axes()) rank = rank * axis.size + axis.index;
  return rank;
}

/// Those of a rank at `place`, primary unless that is so by its index along an axis that splits the tensor.
std::vector<tensor::Block> blocks_at(const NamedTensor& tensor, const Place& place) {
  if (!tensor.part) return tensor.spec.blocks(place);
  return tensor::blocks(tensor.spec, place, {tensor.part->first, tensor.part->size, true});
}

class Ledger {
 public:
  Ledger(const Place& place, int64_t sharers)
      : place_(place), sharers_(static_cast<int>(sharers)), mine_(rank_of(place)) {
    size_t ranks = 1;
    for (const Place::Axis& axis : place.axes()) ranks *= axis.size;
    bytes_.resize(ranks);
  }

  /// Deals out the blocks of a tensor on all ranks that this one knows them of; its own are added to `written`.
  void deal(const NamedTensor& tensor, std::vector<WrittenBlock>& written) {
    std::vector<std::string> replicas;  // that share the tensor out
    if (tensor.part) replicas = tensor::replicas(tensor.spec, place_);
    const int all_sharers = place_.size(replicas),
              sharers = sharers_ == 0 ? all_sharers : std::min(sharers_, all_sharers);
    const int part = place_.index(replicas) % sharers;
    std::vector<Span> owners, copies;  // of the places where blocks differ, and of those that hold the same
    for (const Place::Axis& axis : place_.axes()) {
      const Span all{0, axis.size}, here{axis.index, 1};
      const bool apart = tensor.spec.splits_over(axis.name), in_stage = axis.name != kPipeline;
      const bool shared = std::find(replicas.begin(), replicas.end(), axis.name) != replicas.end();
      owners.push_back(!in_stage ? here : apart || shared ? all : Span{});
      copies.push_back(in_stage && !apart ? all : Span{});
    }
    for_places(place_, owners, [&](const Place& owner) {
      if (owner.index(replicas) != part) return;  // the first that holds this rank's part
      std::vector<size_t> holders;
      std::vector<Span> around = copies;
      for (size_t a = 0; a < around.size(); ++a)
        if (around[a].count == 1) around[a] = {owner.axes()[a].index, 1};
      for_places(owner, around, [&](const Place& holder) {
        if (holder.index(replicas) % sharers == part) holders.push_back(rank_of(holder));
      });
      for (tensor::Block& block : blocks_at(tensor, owner)) {
        const Box box{block.start, block.size};
        if (!block.primary || box.numel() == 0) continue;
        const size_t writer = *std::min_element(holders.begin(), holders.end(),
                                                [&](size_t a, size_t b) { return bytes_[a] < bytes_[b]; });
        bytes_[writer] += box.numel() * static_cast<int64_t>(tensor.value.element_size());
        if (writer == mine_) written.push_back({&tensor, std::move(block)});
      }
    });
  }

 private:
  Place place_;
  int sharers_;
  size_t mine_;
  std::vector<int64_t> bytes_;  // that each rank writes, as far as it is known here
};

}  // namespace

std::vector<WrittenBlock> written_blocks(const TrainingState& state, const tensor::Place& place) {
  Ledger ledger(place, state.sharers);
  std::vector<WrittenBlock> written;
  // Tensors without a part are known on all ranks of a stage, those with one to the ranks that hold the same: what
  // these know of the others must not decide, so the tensors that all know come first.
  for (const bool parts : {false, true})
    for (const NamedTensor& tensor : state.tensors)
      if (tensor.part.has_value() == parts) ledger.deal(tensor, written);
  return written;
}

}  // namespace colossal::checkpoint
