#include "colossal/models/autoencoder_kl_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/families/autoencoder_kl.h"
#include "colossal/models/registry.h"
#include "colossal/nn/linear.h"
#include "colossal/ops/attention/attention.h"
#include "colossal/ops/convolution.h"
#include "colossal/ops/group_norm.h"

namespace colossal::models {
namespace autoencoder_rows {  // a namespace of its own, because files of a layer may be compiled as one

constexpr double kEpsilon = 1e-6;
constexpr int64_t kMostWholePixels = 512 * 512, kLeastRows = 2;
constexpr int64_t kFewStoredBytes = int64_t{256} << 20;

/// Pixels [1, height, width, channels] of which rows [first, last) are made when they are read. They are the rows that
/// this rank has.
struct Source {
  ops::PictureSize size;
  int64_t rows = 0;  ///< of all ranks
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

Source stored_source(const at::Tensor& x, int64_t rows) {
  return {{x.size(1), x.size(2)}, rows, x.size(3), x.size(3), [x](int64_t first, int64_t last) {
            return x.narrow(1, first, last - first);
          }};
}

Hidden stored_state(const at::Tensor& x, int64_t rows) {
  return {stored_source(x, rows), x, static_cast<int64_t>(x.nbytes())};
}

/// The source whose rows are those of `x`, changed.
Source changed(const Source& x, const std::function<at::Tensor(const at::Tensor&)>& change) {
  Source y = x;
  y.read = [read = x.read, change](int64_t first, int64_t last) { return change(read(first, last)); };
  return y;
}

/// The pictures at twice the size, by the nearest pixel.
Source enlarged(const Source& x) {
  const ops::PictureSize size{2 * x.size.height, 2 * x.size.width};
  return {
      size, 2 * x.rows, x.channels, x.widest, [=](int64_t first, int64_t last) {
        const int64_t from = first / 2, to = (last + 1) / 2;
        return ops::enlarged(x.read(from, to), {2 * (to - from), size.width}).narrow(1, first - 2 * from, last - first);
      }};
}

Source added(const Source& x, const Source& y) {
  Source sum = x;
  sum.widest = std::max(x.widest, y.widest);
  sum.read = [=](int64_t first, int64_t last) { return x.read(first, last).add_(y.read(first, last)); };
  return sum;
}

/// A source with the rows next to it that other ranks have.
struct WithHalo {
  Source own;
  at::Tensor above{}, below{};  ///< [1, 1, width, channels]; undefined = none is needed, or the picture ends

  struct Read {
    at::Tensor rows;
    int64_t above, below;  ///< rows that were asked for beyond the picture
  };
  /// Returns the rows [first, last), which may lie outside by one on both sides.
  Read read(int64_t first, int64_t last) const {
    const int64_t from = std::max<int64_t>(0, first), to = std::min(own.size.height, last);
    const bool takes_above = from > first && above.defined(), takes_below = last > to && below.defined();
    at::Tensor rows = own.read(from, to);
    if (takes_above) rows = at::cat({above, rows}, 1);
    if (takes_below) rows = at::cat({rows, below}, 1);
    return {rows, takes_above ? 0 : from - first, takes_below ? 0 : last - to};
  }
};

/// Returns neighbouring shares of the rows, one for each rank, of about the same size.
std::vector<int64_t> shares_of(int64_t rows, int64_t ranks) {
  std::vector<int64_t> shares;
  for (int64_t rank = 0; rank < ranks; ++rank) shares.push_back((rank + 1) * rows / ranks - rank * rows / ranks);
  return shares;
}

class Rows {
 public:
  /// `cells`: rows of the latent. If the ranks are more than these, each has all rows. `offset`: the number of the
  /// first block in a model that has the autoencoder within it.
  Rows(const AutoencoderKlSizes& own, const nn::Parameters& parameters, const RowOptions& options, int64_t cells,
       int64_t offset = 0)
      : own_(own),
        offset_(offset),
        parameters_(parameters),
        options_(options),
        ranks_(options.ranks && options.ranks->ranks() <= cells ? *options.ranks : alone_),
        shares_(shares_of(cells, ranks_.ranks())) {}

  /// Returns this rank's rows of pictures [1, channels, H, W], of `cell` rows for each of a latent. The last rank also
  /// has those that fill no cell.
  Source own_rows(const at::Tensor& pictures, int64_t cell) const {
    const auto share = shares_.begin() + ranks_.rank();
    const int64_t first = cell * std::accumulate(shares_.begin(), share, int64_t{0}), rows = pictures.size(2),
                  last = share + 1 == shares_.end() ? rows : first + cell * *share;
    const at::Tensor own = pictures.narrow(2, first, last - first).to(parameters_.options().dtype);
    return stored_source(own.permute({0, 2, 3, 1}).contiguous(), rows);
  }

  /// Returns the rows of all ranks, [1, rows, width, channels], of which each rank has `cell` for each of a latent.
  at::Tensor gathered(const at::Tensor& own, int64_t cell) const {
    if (ranks_.ranks() == 1) return own;
    std::vector<int64_t> received;
    for (const int64_t share : shares_) received.push_back(cell * share);
    const at::Tensor copies = own.expand({ranks_.ranks(), -1, -1, -1}).flatten(0, 1);
    return ranks_.exchanged(copies, received, std::vector<int64_t>(shares_.size(), own.size(1))).unsqueeze(0);
  }

  std::string block(int64_t index) const { return concat("blocks.", index + offset_); }

  at::Tensor parameter(const std::string& name) const {
    const auto& all = parameters_.declared();
    const auto found = std::find_if(all.begin(), all.end(), [&](const nn::Parameter& p) { return p.name == name; });
    require(found != all.end(), "model", "the parameters must be those of the model: got none named ", name);
    return found->value.detach();
  }

  /// A convolution of 3 x 3 or of 1 x 1 that keeps the size.
  Source convolved(const Source& x, const at::Tensor& weight, const at::Tensor& bias) const {
    const int64_t halo = weight.size(2) / 2;
    const WithHalo all = halo > 0 ? with_halo(x, /*above=*/true) : WithHalo{x};
    return {x.size, x.rows, weight.size(0), std::max(x.widest, weight.size(0)), [=](int64_t first, int64_t last) {
              const auto [rows, above, below] = all.read(first - halo, last + halo);
              return ops::convolution(rows, weight, bias, {1, above, below, halo, halo});
            }};
  }
  Source convolution(const Source& x, const std::string& name) const {
    return convolved(x, parameter(name + ".weight"), parameter(name + ".bias"));
  }

  /// Returns the norm, whose statistics it computes first.
  Source normed(const Source& x, const std::string& name) const {
    const auto norm = std::make_shared<ops::BandedGroupNorm>(parameter(name + ".weight"), parameter(name + ".bias"),
                                                             ops::NormGroups{own_.groups, kEpsilon});
    each_band(x, [&](int64_t first, int64_t last) { norm->add(x.read(first, last).flatten(1, 2)); });
    norm->join(x.rows * x.size.width, ranks_.reduction());
    return changed(x, [norm](const at::Tensor& rows) { return norm->forward(rows.flatten(1, 2)).view(rows.sizes()); });
  }
  Source activated(const Source& x, const std::string& name) const { return changed(normed(x, name), at::silu); }

  at::Tensor store(const Source& x) const {
    at::Tensor all;
    each_band(x, [&](int64_t first, int64_t last) {
      const at::Tensor band = x.read(first, last);
      if (!all.defined()) all = at::empty({1, x.size.height, x.size.width, x.channels}, band.options());
      all.narrow(1, first, last - first).copy_(band);
    });
    return all;
  }

  Hidden hidden(const Source& x) const { return stored_state(store(x), x.rows); }

  /// Runs the blocks [first, last), which neither end the encoder nor begin the decoder.
  Hidden run(Hidden x, const std::vector<AutoencoderKlBlock>& blocks, int64_t first, int64_t last) const {
    using Kind = AutoencoderKlBlock::Kind;
    for (int64_t i = first; i < last; ++i) {
      const std::string name = block(i);
      const AutoencoderKlBlock& b = blocks[static_cast<size_t>(i)];
      if (b.kind == Kind::Resnet)
        x = resnet(std::move(x), name, b.in != b.out);
      else if (b.kind == Kind::Attention)
        x = attention(x, name);
      else if (b.kind == Kind::Down)
        x = hidden(halved(x.source, name + ".conv"));
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

  /// Exchanges the first and last rows of all ranks: a rank gets that below its own, and that above if it is needed.
  WithHalo with_halo(const Source& x, bool above) const {
    const auto ranks = static_cast<size_t>(ranks_.ranks()), rank = static_cast<size_t>(ranks_.rank());
    const bool has_upper = rank > 0, has_lower = rank + 1 < ranks;  // a neighbour
    if (ranks == 1) return {x};
    std::vector<int64_t> received(ranks), sent(ranks);
    if (has_upper) sent[rank - 1] = 1, received[rank - 1] = above;
    if (has_lower) sent[rank + 1] = above, received[rank + 1] = 1;
    const int64_t height = x.size.height;
    const at::Tensor edges =
        at::cat({x.read(0, 1).narrow(1, 0, has_upper), x.read(height - 1, height).narrow(1, 0, has_lower && above)}, 1);
    const at::Tensor got = ranks_.exchanged(edges.squeeze(0), received, sent).unsqueeze(0);
    WithHalo all{x};
    if (has_upper && above) all.above = got.narrow(1, 0, 1);
    if (has_lower) all.below = got.narrow(1, got.size(1) - 1, 1);
    return all;
  }

  /// The convolution that halves the sides, with zeros below and at the right.
  Source halved(const Source& x, const std::string& name) const {
    const at::Tensor weight = parameter(name + ".weight"), bias = parameter(name + ".bias");
    const WithHalo all = with_halo(x, /*above=*/false);
    return {{x.size.height / 2, x.size.width / 2},
            x.rows / 2,
            weight.size(0),
            2 * std::max(x.widest, weight.size(0)),
            [=](int64_t first, int64_t last) {
              const WithHalo::Read read = all.read(2 * first, 2 * last + 1);
              return ops::convolution(read.rows, weight, bias, {.stride = 2, .bottom = read.below, .right = 1});
            }};
  }

  /// All cells attend to each other: each rank has the queries of its rows, and the keys and values of all.
  Hidden attention(const Hidden& x, const std::string& name) const {
    const at::Tensor rows = store(normed(x.source, name + ".norm"));
    const int64_t features = rows.size(3);
    const std::string own = name + ".attention.";
    const at::Tensor qkv = nn::linear(rows, parameter(own + "qkv.weight"), parameter(own + "qkv.bias"));
    const at::Tensor kv = gathered(qkv.narrow(3, features, 2 * features), 1).flatten(1, 2).unsqueeze(1),
                     q = qkv.narrow(3, 0, features).flatten(1, 2).unsqueeze(1);
    const at::Tensor y =
        ops::attention(q, kv.narrow(3, 0, features), kv.narrow(3, features, features), {.causal = false});
    const at::Tensor out = nn::linear(y.view(rows.sizes()), parameter(own + "out.weight"), parameter(own + "out.bias"));
    return stored_state(x.stored + out, x.source.rows);
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
      inside = stored_source(target, x.source.rows);
    }
    const Source way = has_shortcut ? convolution(x.source, name + ".shortcut") : x.source;
    overwrite(target, added(convolution(activated(inside, name + ".norm_2"), name + ".conv_2"), way));
    return stored_state(target, x.source.rows);
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
  int64_t offset_;
  const nn::Parameters& parameters_;
  RowOptions options_;
  RowRanks alone_;
  RowRanks& ranks_;
  std::vector<int64_t> shares_;  // rows of the latent that each rank has
};

AutoencoderKlSizes sizes_of(const Model& model) {
  require(model.shape.architecture->name == "autoencoder_kl", "model",
          "pictures are decoded and encoded by rows by an autoencoder_kl: got ", model.shape.architecture->name);
  return model.shape.own.as<AutoencoderKlSizes>();
}

at::Tensor decoded_one(const AutoencoderKlSizes& own, const Rows& rows, const at::Tensor& latent) {
  const std::vector<AutoencoderKlBlock> blocks = autoencoder_kl_blocks(own);
  const auto first = std::find_if(blocks.begin(), blocks.end(), [](const auto& b) { return b.decodes; });
  const int64_t begin = first - blocks.begin();
  const std::string name = rows.block(begin);
  const Source given = rows.own_rows(latent, 1);
  const Source input = own.post_quant_conv ? rows.convolution(given, name + ".quant") : given;
  const Hidden hidden = rows.run(rows.hidden(rows.convolution(input, name + ".conv")), blocks, begin + 1,
                                 static_cast<int64_t>(blocks.size()));
  const at::Tensor weight = rows.parameter("head.weight");
  const at::ScalarType exact = at::promote_types(weight.scalar_type(), at::kFloat);
  const Source wide =
      changed(rows.activated(hidden.source, "norm"), [exact](const at::Tensor& x) { return x.to(exact); });
  const Source made = rows.convolved(wide, weight.to(exact), rows.parameter("head.bias").to(exact));
  return rows.gathered(rows.store(made), own.factor()).permute({0, 3, 1, 2}).contiguous();
}

at::Tensor moments_of_one(const AutoencoderKlSizes& own, const Rows& rows, const at::Tensor& pixels) {
  const std::vector<AutoencoderKlBlock> blocks = autoencoder_kl_blocks(own);
  const auto end = std::find_if(blocks.begin(), blocks.end(),
                                [](const auto& b) { return b.kind == AutoencoderKlBlock::Kind::Moments; });
  const std::string name = rows.block(end - blocks.begin());
  const Source picture = rows.own_rows(pixels, own.factor());
  const Hidden hidden = rows.run(rows.hidden(rows.convolution(picture, "input")), blocks, 0, end - blocks.begin());
  Source made = rows.convolution(rows.activated(hidden.source, name + ".norm"), name + ".conv");
  if (own.quant_conv) made = rows.convolution(made, name + ".quant");
  const at::Tensor moments = autoencoder_kl_moments(rows.store(made));
  return rows.gathered(moments, 1).permute({0, 3, 1, 2}).contiguous();
}

/// Returns the sizes of the autoencoder of frames within a model.
AutoencoderKlSizes frame_sizes_of(const Model& model) {
  require(has_frame_rows(model.shape), "model", "frames are decoded and encoded by rows by an open_sora_vae: got ",
          model.shape.architecture->name);
  return model.shape.part<FrameAutoencoder>().sizes;
}

at::Tensor decoded(const AutoencoderKlSizes& own, const nn::Parameters& parameters, const at::Tensor& latents,
                   const RowOptions& options, int64_t offset) {
  require(latents.dim() == 4 && latents.size(1) == own.latent_channels, "model", "latents must be [B, ",
          own.latent_channels, ", h, w]: got ", latents.sizes());
  const at::NoGradGuard no_grad;
  const Rows rows(own, parameters, options, latents.size(2), offset);
  std::vector<at::Tensor> pictures;
  for (const at::Tensor& one : latents.split(1)) pictures.push_back(decoded_one(own, rows, one));
  return at::cat(pictures);
}

at::Tensor moments(const AutoencoderKlSizes& own, const nn::Parameters& parameters, const at::Tensor& pixels,
                   const RowOptions& options) {
  require(pixels.dim() == 4 && pixels.size(2) >= own.factor() && pixels.size(3) >= own.factor(), "model",
          "pictures to encode must be [B, channels, H, W] of at least ", own.factor(), " x ", own.factor(),
          " pixels, a cell of a latent: got ", pixels.sizes());
  const at::NoGradGuard no_grad;
  const Rows rows(own, parameters, options, pixels.size(2) / own.factor());
  std::vector<at::Tensor> all;
  for (const at::Tensor& one : pixels.split(1)) all.push_back(moments_of_one(own, rows, one));
  return at::cat(all);
}

/// Returns how pictures of that many cells pass by rows; nothing = whole.
std::optional<RowOptions> rows_of(const ModelShape& shape, int64_t cells, RowRanks* ranks, bool saves_memory) {
  if (!has_rows(shape) || !(saves_memory || prefers_rows(shape, cells, ranks ? ranks->ranks() : 1))) return {};
  RowOptions options{.ranks = ranks};
  if (saves_memory) options.stored_bytes = kFewStoredBytes;
  return options;
}

}  // namespace autoencoder_rows

bool has_rows(const ModelShape& shape) { return shape.architecture->name == "autoencoder_kl"; }

bool prefers_rows(const ModelShape& shape, int64_t cells, int64_t ranks) {
  const int64_t factor = autoencoder_of(shape).factor;
  return (has_rows(shape) || has_frame_rows(shape)) &&
         (ranks > 1 || cells * factor * factor > autoencoder_rows::kMostWholePixels);
}

at::Tensor decoded_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& latents,
                           const RowOptions& options) {
  return autoencoder_rows::decoded(autoencoder_rows::sizes_of(model), parameters, latents, options, 0);
}

at::Tensor moments_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& pixels,
                           const RowOptions& options) {
  return autoencoder_rows::moments(autoencoder_rows::sizes_of(model), parameters, pixels, options);
}

bool has_frame_rows(const ModelShape& shape) { return !shape.part<FrameAutoencoder>().sizes.levels.empty(); }

double frame_scaling(const ModelShape& shape) { return shape.part<FrameAutoencoder>().sizes.scaling; }

at::Tensor decoded_frames_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& latents,
                                  const RowOptions& options) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);  // whose blocks of frames are the first and the last ones
  return autoencoder_rows::decoded(autoencoder_rows::frame_sizes_of(model), parameters, latents, options,
                                   sizes.frames_from - sizes.frame_blocks);
}

at::Tensor frame_moments_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& pixels,
                                 const RowOptions& options) {
  return autoencoder_rows::moments(autoencoder_rows::frame_sizes_of(model), parameters, pixels, options);
}

at::Tensor decoded_exactly(const Model& model, const nn::Parameters& parameters, const at::Tensor& latents,
                           RowRanks* ranks, bool saves_memory) {
  const auto rows = autoencoder_rows::rows_of(model.shape, latents.size(2) * latents.size(3), ranks, saves_memory);
  return rows ? decoded_by_rows(model, parameters, latents, *rows) : decoded(model, latents);
}

at::Tensor moments_exactly(const Model& model, const nn::Parameters& parameters, const at::Tensor& pixels,
                           RowRanks* ranks, bool saves_memory) {
  const int64_t factor = autoencoder_of(model.shape).factor,
                cells = pixels.size(2) / factor * (pixels.size(3) / factor);
  const auto rows = autoencoder_rows::rows_of(model.shape, cells, ranks, saves_memory);
  return rows ? moments_by_rows(model, parameters, pixels, *rows) : moments_of(model, pixels);
}

}  // namespace colossal::models
