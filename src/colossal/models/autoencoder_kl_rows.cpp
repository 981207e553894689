#include "colossal/models/autoencoder_kl_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/families/autoencoder_kl.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/ops/convolution.h"
#include "colossal/ops/group_norm.h"

namespace colossal::models {
namespace autoencoder_rows {  // a namespace of its own, because files of a layer may be compiled as one

constexpr double kEpsilon = 1e-6;
constexpr int64_t kMostWholePixels = 512 * 512, kLeastRows = 2;

/// Pixels [1, height, width, channels] of which rows [first, last) are made when they are read.
struct Source {
  ops::PictureSize size;
  int64_t channels = 0;
  int64_t widest = 0;  ///< most channels of the tensors that a read makes
  std::function<at::Tensor(int64_t first, int64_t last)> read;
};

/// A hidden state between two blocks.
struct Hidden {
  Source source;
  at::Tensor stored{};  ///< undefined = its rows are computed of the state before it
  int64_t bytes = 0;    ///< of the stored state, or of that before it
};

Source stored_source(const at::Tensor& x) {
  return {{x.size(1), x.size(2)}, x.size(3), x.size(3), [x](int64_t first, int64_t last) {
            return x.narrow(1, first, last - first);
          }};
}

/// The pictures at twice the size, by the nearest pixel.
Source enlarged(const Source& x) {
  const ops::PictureSize size{2 * x.size.height, 2 * x.size.width};
  return {
      size, x.channels, x.widest, [=](int64_t first, int64_t last) {
        const int64_t from = first / 2, to = (last + 1) / 2;
        return ops::enlarged(x.read(from, to), {2 * (to - from), size.width}).narrow(1, first - 2 * from, last - first);
      }};
}

/// A convolution of 3 x 3 or of 1 x 1 that keeps the size.
Source convolved(const Source& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t halo = weight.size(2) / 2, height = x.size.height;
  return {x.size, weight.size(0), std::max(x.widest, weight.size(0)), [=](int64_t first, int64_t last) {
            const int64_t from = std::max<int64_t>(0, first - halo), to = std::min(height, last + halo);
            const ops::Window window{1, from - (first - halo), last + halo - to, halo, halo};
            return ops::convolution(x.read(from, to), weight, bias, window);
          }};
}

/// The convolution that halves the sides, with zeros below and at the right.
Source halved(const Source& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t height = x.size.height;
  return {{height / 2, x.size.width / 2},
          weight.size(0),
          2 * std::max(x.widest, weight.size(0)),
          [=](int64_t first, int64_t last) {
            const int64_t to = std::min(height, 2 * last + 1);
            const ops::Window window{.stride = 2, .bottom = 2 * last + 1 - to, .right = 1};
            return ops::convolution(x.read(2 * first, to), weight, bias, window);
          }};
}

Source added(const Source& x, const Source& y) {
  return {x.size, x.channels, std::max(x.widest, y.widest),
          [=](int64_t first, int64_t last) { return x.read(first, last).add_(y.read(first, last)); }};
}

class Rows {
 public:
  Rows(const AutoencoderKlSizes& own, const nn::Parameters& parameters, const RowOptions& options)
      : own_(own), parameters_(parameters), options_(options) {}

  at::Tensor parameter(const std::string& name) const {
    const auto& all = parameters_.declared();
    const auto found = std::find_if(all.begin(), all.end(), [&](const nn::Parameter& p) { return p.name == name; });
    require(found != all.end(), "model", "the parameters must be those of the model: got none named ", name);
    return found->value.detach();
  }

  Source convolution(const Source& x, const std::string& name) const {
    return convolved(x, parameter(name + ".weight"), parameter(name + ".bias"));
  }

  /// Returns silu of the norm, whose statistics it computes first.
  Source activated(const Source& x, const std::string& name) const {
    const auto norm = std::make_shared<ops::BandedGroupNorm>(parameter(name + ".weight"), parameter(name + ".bias"),
                                                             ops::NormGroups{own_.groups, kEpsilon});
    each_band(x, [&](int64_t first, int64_t last) { norm->add(x.read(first, last).flatten(1, 2)); });
    return {x.size, x.channels, x.widest, [=](int64_t first, int64_t last) {
              return at::silu(norm->forward(x.read(first, last).flatten(1, 2)))
                  .view({1, last - first, x.size.width, x.channels});
            }};
  }

  at::Tensor store(const Source& x) const {
    at::Tensor all;
    each_band(x, [&](int64_t first, int64_t last) {
      const at::Tensor band = x.read(first, last);
      if (!all.defined()) all = at::empty({1, x.size.height, x.size.width, x.channels}, band.options());
      all.narrow(1, first, last - first).copy_(band);
    });
    return all;
  }

  Hidden hidden(const Source& x) const {
    const at::Tensor all = store(x);
    return {stored_source(all), all, static_cast<int64_t>(all.nbytes())};
  }

  /// Runs the blocks [first, last), each of which is a ResNet or a resampling layer.
  Hidden run(Hidden x, const std::vector<AutoencoderKlBlock>& blocks, int64_t first, int64_t last) const {
    using Kind = AutoencoderKlBlock::Kind;
    for (int64_t i = first; i < last; ++i) {
      const std::string name = concat("blocks.", i);
      const AutoencoderKlBlock& b = blocks[static_cast<size_t>(i)];
      if (b.kind == Kind::Resnet)
        x = resnet(std::move(x), name, b.in != b.out);
      else if (b.kind == Kind::Down)
        x = hidden(halved(x.source, parameter(name + ".conv.weight"), parameter(name + ".conv.bias")));
      else
        x = enlarge(x, name);
    }
    return x;
  }

  void each_band(const Source& x, const std::function<void(int64_t, int64_t)>& body) const {
    const int64_t rows = std::max(kLeastRows, options_.band_elements / std::max<int64_t>(1, x.size.width * x.widest));
    for (int64_t first = 0; first < x.size.height; first += rows) body(first, std::min(x.size.height, first + rows));
  }

 private:
  int64_t bytes_of(const Source& x) const {
    return x.size.pixels() * x.channels * static_cast<int64_t>(c10::elementSize(parameters_.options().dtype));
  }
  bool fits_beside(const Hidden& x, const Source& made) const {
    return x.bytes + bytes_of(made) <= options_.stored_bytes;
  }

  Hidden enlarge(const Hidden& x, const std::string& name) const {
    const Source made = convolution(enlarged(x.source), name + ".conv");
    return fits_beside(x, made) ? hidden(made) : Hidden{made, {}, x.bytes};
  }

  Hidden resnet(Hidden x, const std::string& name, bool has_shortcut) const {
    Source inside = convolution(activated(x.source, name + ".norm_1"), name + ".conv_1");
    at::Tensor target = x.stored;
    // What is not stored is computed twice, for the statistics of the second norm and for the second convolution.
    if (!target.defined() || has_shortcut || fits_beside(x, inside)) {
      target = store(inside);
      inside = stored_source(target);
    }
    const Source way = has_shortcut ? convolution(x.source, name + ".shortcut") : x.source;
    overwrite(target, added(convolution(activated(inside, name + ".norm_2"), name + ".conv_2"), way));
    return {stored_source(target), target, static_cast<int64_t>(target.nbytes())};
  }

  /// Writes rows that are made of rows of `target` up to kLeastRows away: a band is written after the next one is made.
  void overwrite(const at::Tensor& target, const Source& made) const {
    at::Tensor band;
    int64_t begin = 0;
    const auto write = [&] {
      if (band.defined()) target.narrow(1, begin, band.size(1)).copy_(band);
    };
    each_band(made, [&](int64_t first, int64_t last) {
      at::Tensor next = made.read(first, last);
      write();
      band = std::move(next), begin = first;
    });
    write();
  }

  const AutoencoderKlSizes& own_;
  const nn::Parameters& parameters_;
  RowOptions options_;
};

tensor::Batch batch_of(const char* name, const at::Tensor& pictures) {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add(name, {pictures, {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  return batch;
}

/// Returns the first block of that kind from `first` on, or the number of blocks.
int64_t next_block(const std::vector<AutoencoderKlBlock>& blocks, int64_t first,
                   const std::function<bool(const AutoencoderKlBlock&)>& is_it) {
  return std::find_if(blocks.begin() + first, blocks.end(), is_it) - blocks.begin();
}

AutoencoderKlSizes sizes_of(const Model& model) {
  require(model.shape.architecture->name == "autoencoder_kl", "model",
          "pictures are decoded and encoded by rows by an autoencoder_kl: got ", model.shape.architecture->name);
  return model.shape.own.as<AutoencoderKlSizes>();
}

at::Tensor decoded_one(const Model& model, const AutoencoderKlSizes& own, const Rows& rows, const at::Tensor& latent) {
  const std::vector<AutoencoderKlBlock> blocks = autoencoder_kl_blocks(own);
  const int64_t first = autoencoder_of(model.shape).encoder_blocks, last = static_cast<int64_t>(blocks.size());
  const int64_t up = next_block(blocks, first, [](const auto& b) { return b.kind == AutoencoderKlBlock::Kind::Up; });
  // The blocks at the smallest size run whole: cells attend to each other there.
  States states(model.states.size());
  states.at(AutoencoderStates::latent) = latent.flatten(2).transpose(1, 2).contiguous();
  states = run_stage(model, {.first = first, .last = up, .embeds = false, .ends = false}, std::move(states),
                     nn::step_of(batch_of("latents", latent)));
  const at::Tensor small = states.at(AutoencoderStates::hidden).view({1, latent.size(2), latent.size(3), -1});
  states.clear();
  const Hidden hidden = rows.run({stored_source(small), small, static_cast<int64_t>(small.nbytes())}, blocks, up, last);
  const at::ScalarType exact = at::promote_types(small.scalar_type(), at::kFloat);
  const Source activated = rows.activated(hidden.source, "norm");
  const Source wide{activated.size, activated.channels, activated.widest,
                    [&](int64_t from, int64_t to) { return activated.read(from, to).to(exact); }};
  const Source made = convolved(wide, rows.parameter("head.weight").to(exact), rows.parameter("head.bias").to(exact));
  return rows.store(made).permute({0, 3, 1, 2}).contiguous();
}

at::Tensor moments_of_one(const Model& model, const AutoencoderKlSizes& own, const Rows& rows,
                          const at::Tensor& pixels) {
  const std::vector<AutoencoderKlBlock> blocks = autoencoder_kl_blocks(own);
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  const auto levels = static_cast<int64_t>(own.levels.size());
  const int64_t small = next_block(blocks, 0, [&](const auto& b) { return b.level == levels - 1; });
  const at::Tensor weight = rows.parameter("input.weight");
  const Source picture = stored_source(pixels.to(weight.scalar_type()).permute({0, 2, 3, 1}).contiguous());
  const Hidden hidden = rows.run(rows.hidden(rows.convolution(picture, "input")), blocks, 0, small);
  States states(model.states.size());
  states.at(AutoencoderStates::hidden) = hidden.stored.flatten(1, 2);
  states = run_stage(model, {.first = small, .last = sizes.encoder_blocks, .embeds = false, .ends = false},
                     std::move(states), nn::step_of(batch_of("images", pixels)));
  return states.at(AutoencoderStates::moments)
      .transpose(1, 2)
      .unflatten(2, {pixels.size(2) / sizes.factor, pixels.size(3) / sizes.factor})
      .contiguous();
}

}  // namespace autoencoder_rows

bool prefers_rows(const ModelShape& shape, int64_t cells) {
  const int64_t factor = autoencoder_of(shape).factor;
  return shape.architecture->name == "autoencoder_kl" && cells * factor * factor > autoencoder_rows::kMostWholePixels;
}

at::Tensor decoded_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& latents,
                           const RowOptions& options) {
  const AutoencoderKlSizes own = autoencoder_rows::sizes_of(model);
  require(latents.dim() == 4 && latents.size(1) == own.latent_channels, "model", "latents must be [B, ",
          own.latent_channels, ", h, w]: got ", latents.sizes());
  const at::NoGradGuard no_grad;
  const autoencoder_rows::Rows rows(own, parameters, options);
  std::vector<at::Tensor> pictures;
  for (const at::Tensor& one : latents.split(1))
    pictures.push_back(autoencoder_rows::decoded_one(model, own, rows, one));
  return at::cat(pictures);
}

at::Tensor moments_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& pixels,
                           const RowOptions& options) {
  const AutoencoderKlSizes own = autoencoder_rows::sizes_of(model);
  require(pixels.dim() == 4 && pixels.size(2) >= own.factor() && pixels.size(3) >= own.factor(), "model",
          "pictures to encode must be [B, channels, H, W] of at least ", own.factor(), " x ", own.factor(),
          " pixels, a cell of a latent: got ", pixels.sizes());
  const at::NoGradGuard no_grad;
  const autoencoder_rows::Rows rows(own, parameters, options);
  std::vector<at::Tensor> moments;
  for (const at::Tensor& one : pixels.split(1))
    moments.push_back(autoencoder_rows::moments_of_one(model, own, rows, one));
  return at::cat(moments);
}

}  // namespace colossal::models
