#include "colossal/checkpoint/local_boxes.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/checkpoint/box.h"

namespace colossal::checkpoint {

std::vector<tensor::LocalBox> local_boxes_of(const NamedTensor& tensor, const tensor::MeshCoordinates& coordinates) {
  return tensor.part ? tensor::local_boxes(tensor.spec, coordinates, *tensor.part)
                     : tensor.spec.local_boxes(coordinates);
}

at::Tensor at_local_box(const NamedTensor& tensor, const at::Tensor& value, const tensor::MeshCoordinates& coordinates,
                        const tensor::LocalBox& block) {
  if (tensor.part)
    return tensor::at_local_box(value.detach(), tensor.spec.local_shape(coordinates), *tensor.part, block);
  return at_box(value.detach(), {block.local_start, block.size});
}

namespace {

using tensor::MeshCoordinates;
constexpr char kPipeline[] = "pipeline";

/// The indices [first, first + count) along an axis of the mesh.
struct Span {
  int first = 0, count = 1;
};

/// Calls body(coordinates) for all mesh coordinates with axis a in spans[a], the first axis outermost.
template <class Body>
void for_coordinates(const MeshCoordinates& coordinates, const std::vector<Span>& spans, const Body& body) {
  std::vector<MeshCoordinates::Axis> axes = coordinates.axes();
  const auto visit = [&](const auto& self, size_t a) -> void {
    if (a == axes.size()) return body(MeshCoordinates(axes));
    for (int i = 0; i < spans[a].count; ++i) {
      axes[a].index = spans[a].first + i;
      self(self, a + 1);
    }
  };
  visit(visit, 0);
}

size_t rank_of(const MeshCoordinates& coordinates) {
  size_t rank = 0;
  for (const MeshCoordinates::Axis& axis : coordinates.axes()) rank = rank * axis.size + axis.index;
  return rank;
}

/// Returns the blocks of a rank at `coordinates`. A block is primary unless the rank's index along an axis other than
/// replicas() makes it a copy.
std::vector<tensor::LocalBox> local_boxes_at(const NamedTensor& tensor, const MeshCoordinates& coordinates) {
  if (!tensor.part) return tensor.spec.local_boxes(coordinates);
  return tensor::local_boxes(tensor.spec, coordinates, {tensor.part->first, tensor.part->size, true});
}

class Ledger {
 public:
  Ledger(const MeshCoordinates& coordinates, int64_t sharers)
      : coordinates_(coordinates), sharers_(static_cast<int>(sharers)), mine_(rank_of(coordinates)) {
    size_t ranks = 1;
    for (const MeshCoordinates::Axis& axis : coordinates.axes()) ranks *= axis.size;
    bytes_.resize(ranks);
  }

  /// Assigns writers to the blocks of a tensor on all ranks whose blocks this rank knows. Adds its own blocks to
  /// `written`.
  void deal(const NamedTensor& tensor, std::vector<WrittenBlock>& written) {
    std::vector<std::string> replicas;  // axes of the replicas that share the tensor
    if (tensor.part) replicas = tensor::replicas(tensor.spec, coordinates_);
    const int all_sharers = coordinates_.size(replicas),
              sharers = sharers_ == 0 ? all_sharers : std::min(sharers_, all_sharers);
    const int part = coordinates_.index(replicas) % sharers;
    std::vector<Span> owners, copies;  // mesh coordinates with different blocks; with copies of one block
    for (const MeshCoordinates::Axis& axis : coordinates_.axes()) {
      const Span all{0, axis.size}, here{axis.index, 1};
      const bool apart = tensor.spec.splits_over(axis.name), in_stage = axis.name != kPipeline;
      const bool shared = std::find(replicas.begin(), replicas.end(), axis.name) != replicas.end();
      owners.push_back(!in_stage ? here : apart || shared ? all : Span{});
      copies.push_back(in_stage && !apart ? all : Span{});
    }
    for_coordinates(coordinates_, owners, [&](const MeshCoordinates& owner) {
      if (owner.index(replicas) != part) return;  // only the first owner of this rank's part
      std::vector<size_t> holders;
      std::vector<Span> around = copies;
      for (size_t a = 0; a < around.size(); ++a)
        if (around[a].count == 1) around[a] = {owner.axes()[a].index, 1};
      for_coordinates(owner, around, [&](const MeshCoordinates& holder) {
        if (holder.index(replicas) % sharers == part) holders.push_back(rank_of(holder));
      });
      for (tensor::LocalBox& block : local_boxes_at(tensor, owner)) {
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
  MeshCoordinates coordinates_;
  int sharers_;
  size_t mine_;
  std::vector<int64_t> bytes_;  // bytes that each rank writes, as far as this rank knows
};

}  // namespace

std::vector<WrittenBlock> written_blocks(const TrainingState& state, const tensor::MeshCoordinates& coordinates) {
  Ledger ledger(coordinates, state.sharers);
  std::vector<WrittenBlock> written;
  // Tensors without a part come first, because all ranks of a stage know them. Only the ranks that hold the same part
  // know the others, and their knowledge must not influence the shared decisions.
  for (const bool parts : {false, true})
    for (const NamedTensor& tensor : state.tensors)
      if (tensor.part.has_value() == parts) ledger.deal(tensor, written);
  return written;
}

}  // namespace colossal::checkpoint
