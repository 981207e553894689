#include "colossal/parallel/tensor/primitives.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/comm/collectives.h"
#include "colossal/comm/group.h"
#include "colossal/parallel/tensor/activations.h"

namespace colossal::parallel {
namespace {

const Split& split_of(const Layout& layout, nn::Place place) {
  return place == nn::Place::Outside ? layout.outside : layout.inside;
}

/// This rank's features, and the room for them.
struct Part {
  Part(const Layout& layout, int64_t size, nn::Place place) {
    const tensor::MeshCoordinates& coordinates = layout.mesh->coordinates();
    const auto& columns = split_of(layout, place).columns;
    const int64_t parts = coordinates.size(columns);
    require(size > 0 && (place == nn::Place::Inside || size % parts == 0), "parallel",
            "features between blocks must be divisible by the ", parts, " ranks that split them: got ", size);
    room = (size + parts - 1) / parts;
    const int64_t first = std::min(coordinates.index(columns) * room, size);
    here = {first, std::min(room, size - first)};
  }
  nn::Range here{};
  int64_t room = 0;
};

// Each rank uses the sum in its own way, so the gradients of all ranks are summed, too.
at::Tensor summed(const at::Tensor& partial, comm::Group& ranks) {
  return ranks.size() == 1 ? partial : comm::copy_to(comm::reduce_from(partial, ranks), ranks);
}

}  // namespace

TensorVector::TensorVector(nn::Parameters& parameters, const Layout& layout, const std::string& name,
                           std::vector<int64_t> shape, const nn::VectorOptions& o)
    : table_(parameters, layout, name, std::move(shape), split_of(layout, o.place),
             {.features = o.features, .segments = o.segments, .init = o.init, .decay = o.decay}) {}

TensorFeatures::TensorFeatures(const Layout& layout, int64_t size, nn::Place place)
    : Features(size, Part(layout, size, place).here, Part(layout, size, place).room),
      ranks_(layout.mesh->group(split_of(layout, place).columns)),
      reduction_(ranks_) {}

at::Tensor TensorFeatures::sum(const at::Tensor& partial) const { return summed(partial, ranks_); }

TensorTokenRuns::TensorTokenRuns(std::shared_ptr<const Layout> layout)
    : layout_(std::move(layout)), ranks_(layout_->mesh->group(layout_->outside.sequence)) {}

int64_t TensorTokenRuns::ranks() const { return ranks_.size(); }

int64_t TensorTokenRuns::rank() const { return layout_->mesh->coordinates().index(layout_->outside.sequence); }

nn::Tokens TensorTokenRuns::here(const nn::ForwardContext& step) const {
  return tokens_of(*layout_, layout_->outside, step);
}

at::Tensor TensorTokenRuns::sum(const at::Tensor& partial) const { return summed(partial, ranks_); }

at::Tensor TensorTokenRuns::gathered(const at::Tensor& own) const { return comm::all_gather(own, 1, ranks_); }

}  // namespace colossal::parallel
