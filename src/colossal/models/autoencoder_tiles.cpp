#include "colossal/models/autoencoder_tiles.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_kl_rows.h"

namespace colossal::models {
namespace {

constexpr int64_t kOverlap = 4;  // a quarter of a side

/// Goes over from the end of `before` to the beginning of `tile` along a dimension, over at most `cells`.
void blend(const at::Tensor& before, const at::Tensor& tile, int64_t dim, int64_t cells) {
  cells = std::min({cells, before.size(dim), tile.size(dim)});
  std::vector<int64_t> sizes(static_cast<size_t>(tile.dim()), 1);
  sizes[static_cast<size_t>(dim)] = cells;
  const at::Tensor share = (at::arange(cells, tile.options()) / static_cast<double>(cells)).view(sizes);
  at::Tensor begin = tile.narrow(dim, 0, cells);
  begin.copy_(before.narrow(dim, before.size(dim) - cells, cells) * (1 - share) + begin * share);
}

/// Makes tiles of `cells` cells of a latent a side into others. A cell has `in` numbers a side in `x`, and `out` in the
/// result. Tiles begin at whole cells, also if a quarter of a side is no whole number of them.
at::Tensor in_tiles(const at::Tensor& x, int64_t cells, int64_t in, int64_t out,
                    const std::function<at::Tensor(const at::Tensor&)>& make) {
  const int64_t cells_on = std::max<int64_t>(1, cells * (kOverlap - 1) / kOverlap);
  const int64_t side = cells * in, step = cells_on * in, kept = cells_on * out, blended = (cells - cells_on) * out;
  std::vector<at::Tensor> rows, above;
  for (int64_t top = 0; top < x.size(2); top += step) {
    std::vector<at::Tensor> row, parts;
    for (int64_t left = 0; left < x.size(3); left += step) {
      at::Tensor tile = make(x.slice(2, top, top + side).slice(3, left, left + side).contiguous());
      if (!above.empty()) blend(above[row.size()], tile, 2, blended);
      if (!row.empty()) blend(row.back(), tile, 3, blended);
      parts.push_back(tile.slice(2, 0, kept).slice(3, 0, kept));
      row.push_back(std::move(tile));
    }
    rows.push_back(at::cat(parts, 3));
    above = std::move(row);
  }
  return at::cat(rows, 2);
}

}  // namespace

bool takes_tiles(const AutoencoderSizes& sizes, const ops::PictureSize& cells) {
  return std::max(cells.height, cells.width) > sizes.height / sizes.factor;
}

at::Tensor decoded_in_tiles(const Model& model, const nn::Parameters& parameters, const at::Tensor& latents) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  const auto decode = [&](const at::Tensor& x) { return decoded_exactly(model, parameters, x); };
  if (!takes_tiles(sizes, {latents.size(2), latents.size(3)})) return decode(latents);
  return in_tiles(latents, sizes.height / sizes.factor, /*in=*/1, sizes.factor, decode);
}

at::Tensor moments_in_tiles(const Model& model, const nn::Parameters& parameters, const at::Tensor& pixels) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  const auto encode = [&](const at::Tensor& x) { return moments_exactly(model, parameters, x); };
  if (!takes_tiles(sizes, {pixels.size(2) / sizes.factor, pixels.size(3) / sizes.factor})) return encode(pixels);
  return in_tiles(pixels, sizes.height / sizes.factor, sizes.factor, /*out=*/1, encode);
}

}  // namespace colossal::models
