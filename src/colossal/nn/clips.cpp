#include "colossal/nn/clips.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/clip_memory.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/causal_convolution.h"

namespace colossal::nn {
namespace {

/// Returns the last `count` frames of a clip that begins with `before` and goes on with x. An undefined `before` stands
/// for the frames in front of a clip.
at::Tensor last_frames(const at::Tensor& before, const at::Tensor& x, int64_t count, bool replicates) {
  const int64_t more = count - x.size(1);
  if (more <= 0) return x.narrow(1, x.size(1) - count, count).clone();  // without the memory of the other frames
  at::Tensor earlier;
  if (before.defined())
    earlier = before.narrow(1, before.size(1) - more, more);
  else
    earlier = x.narrow(1, 0, 1).expand({-1, more, -1, -1, -1});
  return at::cat({before.defined() || replicates ? earlier : at::zeros_like(earlier), x}, 1);
}

class VectorConvolution final : public ClipConvolution {
 public:
  VectorConvolution(Layers& make, const std::string& name, int64_t in, int64_t out, const CausalOptions& o)
      : options_(o),
        window_{.frame_stride = o.frame_stride, .stride = o.stride, .front = o.front, .replicates = o.replicates},
        weight_(make.vector(name + ".weight", {out, in, o.kernel[0], o.kernel[1], o.kernel[2]},
                            {.init = Init::normal(o.deviation), .decay = true})),
        bias_(o.bias ? make.vector(name + ".bias", {out}, {}) : nullptr) {}

  at::Tensor forward(const at::Tensor& x, const ops::PictureSize& size, const ForwardContext& step) override {
    require(x.dim() == 4 && x.size(2) == size.pixels(), "model", "the frames of a clip of ", size.height, " x ",
            size.width, " must be [B, frames, ", size.pixels(), ", features]: got ", x.sizes());
    at::Tensor weight = weight_->value(), bias = bias_ ? bias_->value() : at::Tensor();
    at::Tensor clip = x.unflatten(2, {size.height, size.width});
    if (options_.is_exact) {
      const at::ScalarType exact = at::promote_types(weight.scalar_type(), at::kFloat);
      weight = weight.to(exact), clip = clip.to(exact);
      if (bias.defined()) bias = bias.to(exact);
    }
    const ClipPass* pass = step.parts.find<ClipPass>();
    return (pass ? of_chunk(clip, weight, bias, *pass->memory) : ops::causal_convolution(clip, weight, bias, window_))
        .flatten(2, 3);
  }

 private:
  at::Tensor of_chunk(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, ClipMemory& memory) const {
    const at::Tensor before = memory.carried(this);
    const int64_t front = window_.front >= 0 ? window_.front : weight.size(2) - 1;
    if (memory.is_idle()) {
      const auto sizes = ops::causal_sizes(x.sizes(), weight.sizes(), window_, weight.size(2) - 1);
      return at::empty(sizes, x.options());
    }
    const at::Tensor y = by_rows(x, weight, bias, before, memory.band_elements());
    const int64_t frames = (before.defined() ? before.size(1) : front) + x.size(1),
                  read = y.size(1) * window_.frame_stride;
    memory.carry(this, last_frames(before, x, std::max<int64_t>(0, frames - read), window_.replicates));
    return y;
  }

  /// Returns the convolution, by bands of rows where it is large: what surrounds the frames is a copy.
  at::Tensor by_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                     int64_t elements) const {
    const int64_t most = std::max<int64_t>(1, elements / std::max<int64_t>(1, x.size(1) * x.size(3) * x.size(4))),
                  stride = window_.stride, rows = (x.size(2) - 1) / stride + 1, halo = weight.size(3) / 2;
    if (rows <= most || halo > 1) return ops::causal_convolution(x, weight, bias, window_, before);
    at::Tensor all;
    for (int64_t first = 0; first < rows; first += most) {
      const int64_t count = std::min(most, rows - first), from = std::max<int64_t>(0, first - halo) * stride,
                    to = std::min(x.size(2), (first + count) * stride + halo);
      const auto band = [&](const at::Tensor& frames) {
        return frames.defined() ? frames.narrow(2, from, to - from) : frames;
      };
      const at::Tensor y = ops::causal_convolution(band(x), weight, bias, window_, band(before));
      if (!all.defined()) all = at::empty({y.size(0), y.size(1), rows, y.size(3), y.size(4)}, y.options());
      all.narrow(2, first, count).copy_(y.narrow(2, first - from / stride, count));
    }
    return all;
  }

  CausalOptions options_;
  ops::CausalWindow window_;
  std::unique_ptr<Vector> weight_, bias_;  // bias_: null = none
};

class VectorClipNorm final : public ClipNorm {
 public:
  VectorClipNorm(Layers& make, const std::string& name, int64_t features, const ops::NormGroups& groups)
      : groups_(groups),
        weight_(make.vector(name + ".weight", {features}, {.init = Init::ones()})),
        bias_(make.vector(name + ".bias", {features}, {})) {
    require(groups.groups > 0 && features % groups.groups == 0, "model", "the groups of ", name, " must divide its ",
            features, " features: got ", groups.groups);
  }

  at::Tensor forward(const at::Tensor& x, const ForwardContext& step) override {
    const at::Tensor weight = weight_->value(), bias = bias_->value(), pixels = x.flatten(1, 2);
    const ClipPass* pass = step.parts.find<ClipPass>();
    const at::Tensor y =
        pass ? pass->memory->normed(this, pixels, [&] { return ops::BandedGroupNorm(weight, bias, groups_); })
             : ops::group_norm(pixels, weight, bias, groups_);
    return y.view(x.sizes());
  }

 private:
  ops::NormGroups groups_;
  std::unique_ptr<Vector> weight_, bias_;
};

}  // namespace

bool ClipMemory::end_pass() {
  const bool made = pending_ != nullptr;
  if (made) pending_->are_complete = true;
  pending_ = nullptr;
  return made;
}

at::Tensor ClipMemory::carried(const void* layer) const {
  const auto found = carried_.find(layer);
  return found == carried_.end() ? at::Tensor() : found->second;
}

at::Tensor ClipMemory::normed(const void* layer, const at::Tensor& x,
                              const std::function<ops::BandedGroupNorm()>& make) {
  if (is_idle_) return x;
  auto found = statistics_.find(layer);
  if (found == statistics_.end()) found = statistics_.emplace(layer, Statistics{make()}).first;
  if (found->second.are_complete) return found->second.norm.forward(x);
  found->second.norm.add(x);
  pending_ = &found->second;
  is_idle_ = true;
  return x;
}

std::unique_ptr<ClipConvolution> Layers::causal_convolution(const std::string& name, int64_t in, int64_t out,
                                                            const CausalOptions& options) {
  return std::make_unique<VectorConvolution>(*this, name, in, out, options);
}

std::unique_ptr<ClipNorm> Layers::clip_norm(const std::string& name, int64_t features, const ops::NormGroups& groups) {
  return std::make_unique<VectorClipNorm>(*this, name, features, groups);
}

}  // namespace colossal::nn
