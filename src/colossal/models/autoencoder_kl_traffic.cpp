// The elements that ranks send which share the rows of a picture: models/autoencoder_kl_rows.h.
#include "colossal/models/autoencoder_kl_rows.h"

namespace colossal::models {
namespace {

/// Counts layer after layer, of which each has the sides of the one before.
class TrafficCount {
 public:
  TrafficCount(const AutoencoderKlSizes& own, const ops::PictureSize& size, int64_t ranks)
      : own_(own), width_(size.width), others_(ranks - 1) {}

  void convolution(int64_t channels, int64_t rows = 2) { traffic_.halos += rows * others_ * width_ * channels; }
  void norm() { traffic_.norms += 2 * others_ * 2 * own_.groups; }
  void block(const AutoencoderKlBlock& b, int64_t height) {
    using Kind = AutoencoderKlBlock::Kind;
    switch (b.kind) {
      case Kind::Resnet:
        return norm(), convolution(b.in), norm(), convolution(b.out);
      case Kind::Attention:
        traffic_.attention += others_ * height * width_ * 2 * b.in;
        return norm();
      case Kind::Down:
        convolution(b.in, 1);
        width_ /= 2;
        return;
      case Kind::Up:
        width_ *= 2;
        return convolution(b.in);
      case Kind::Moments:
        return norm(), convolution(b.in);
      case Kind::Latent:
        return convolution(b.in);
    }
  }
  RowTraffic with_result(int64_t elements) {
    traffic_.result = others_ * elements;
    return traffic_;
  }

 private:
  const AutoencoderKlSizes& own_;
  int64_t width_, others_;
  RowTraffic traffic_;
};

}  // namespace

RowTraffic decoding_traffic(const AutoencoderKlSizes& sizes, const ops::PictureSize& cells, int64_t ranks) {
  if (ranks > cells.height) return {};
  TrafficCount count(sizes, cells, ranks);
  for (const AutoencoderKlBlock& b : autoencoder_kl_blocks(sizes))
    if (b.decodes) count.block(b, cells.height);
  count.norm();
  count.convolution(sizes.levels.front());
  return count.with_result(sizes.channels * cells.pixels() * sizes.factor() * sizes.factor());
}

RowTraffic encoding_traffic(const AutoencoderKlSizes& sizes, const ops::PictureSize& pixels, int64_t ranks) {
  const ops::PictureSize cells{pixels.height / sizes.factor(), pixels.width / sizes.factor()};
  if (ranks > cells.height) return {};
  TrafficCount count(sizes, pixels, ranks);
  count.convolution(sizes.channels);
  for (const AutoencoderKlBlock& b : autoencoder_kl_blocks(sizes))
    if (!b.decodes) count.block(b, cells.height);
  return count.with_result(2 * sizes.latent_channels * cells.pixels());
}

}  // namespace colossal::models
