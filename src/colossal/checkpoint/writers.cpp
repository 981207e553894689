#include "colossal/checkpoint/writers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/checkpoint/box.h"

namespace colossal::checkpoint {
namespace {

using tensor::Place;
constexpr char kPipeline[] = "pipeline", kData[] = "data";

bool is_split_over(const tensor::ShardSpec& spec, const std::string& axis) {
  const auto names = [&](const std::vector<std::string>& axes) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  };
  return std::any_of(spec.splits.begin(), spec.splits.end(),
                     [&](const tensor::DimSplit& s) { return names(s.axes) || names(s.shards); });
}

/// The indices along an axis at which ranks are looked at: all of it, or those of this rank's equals.
struct Steps {
  int first = 0, stride = 1, count = 1;
};

/// body(place) for every place that differs from `place` along axis a in steps[a], the first axis outermost.
template <class Body>
void for_places(const Place& place, const std::vector<Steps>& steps, const Body& body) {
  std::vector<Place::Axis> axes = place.axes();
  const auto visit = [&](const auto& self, size_t a) -> void {
    if (a == axes.size()) return body(Place(axes));
    for (int i = 0; i < steps[a].count; ++i) {
      axes[a].index = steps[a].first + i * steps[a].stride;
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
    std::vector<Steps> owners, copies;  // of the places where blocks differ, and of those that hold the same
    for (const Place::Axis& axis : place_.axes()) {
      const Steps here{axis.index, 1, 1}, all{0, 1, axis.size};
      const bool apart = is_split_over(tensor.spec, axis.name), shared = axis.name == kData && tensor.part;
      const Steps equals{axis.index % sharers_, sharers_, axis.size / sharers_};  // hold the same part
      const Steps first{shared ? equals.first : 0, 1, 1};
      owners.push_back(axis.name == kPipeline ? here : apart ? all : first);
      copies.push_back(axis.name == kPipeline || apart ? Steps{} : shared ? equals : all);
    }
    for_places(place_, owners, [&](const Place& owner) {
      std::vector<size_t> holders;
      std::vector<Steps> around = copies;
      for (size_t a = 0; a < around.size(); ++a)
        if (around[a].count == 1) around[a] = {owner.axes()[a].index, 1, 1};
      for_places(owner, around, [&](const Place& holder) { holders.push_back(rank_of(holder)); });
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
