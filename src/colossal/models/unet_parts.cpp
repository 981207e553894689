#include "colossal/models/unet_parts.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::models {

namespace unet {

/// Returns the number of skips: of the embedding, of each ResNet on the way down, and of each level but the last.
int skips_of(const UnetSizes& sizes) {
  return static_cast<int>(sizes.features.size()) * static_cast<int>(sizes.resnets + 1);
}

/// Puts the parts one after the other.
class Chain {
 public:
  explicit Chain(const UnetSizes& sizes)
      : sizes_(sizes), inside_(kUnetSkips + skips_of(sizes)), features_(sizes.features.front()) {
    keep();
  }

  void down(int64_t level, bool is_last) {
    const std::string folder = concat("down_blocks.", level, ".");
    for (int64_t i = 0; i < sizes_.resnets; ++i) {
      resnet(concat(folder, "resnets.", i, "."), level);
      if (sizes_.transformers[level] > 0) transformer(concat(folder, "attentions.", i, "."), level);
      keep();
    }
    if (is_last) return;
    add({.kind = UnetPart::Kind::Downsampler, .folder = folder + "downsamplers.0.", .level = level + 1});
    keep();
  }
  void middle() {
    resnet("mid_block.resnets.0.", level_);
    transformer("mid_block.attentions.0.", level_);
    resnet("mid_block.resnets.1.", level_);
  }
  void up(int64_t level, int64_t index) {
    const std::string folder = concat("up_blocks.", index, ".");
    for (int64_t i = 0; i <= sizes_.resnets; ++i) {
      resnet(concat(folder, "resnets.", i, "."), level, /*joins=*/true);
      if (sizes_.transformers[level] > 0) transformer(concat(folder, "attentions.", i, "."), level);
    }
    if (level > 0) add({.kind = UnetPart::Kind::Upsampler, .folder = folder + "upsamplers.0.", .level = level - 1});
  }
  std::vector<UnetPart> take() { return std::move(parts_); }

 private:
  struct Skip {
    int state;
    int64_t features;
  };

  /// Makes the result of the last part, or of the embedding, a skip. The next part reads it from there, so that it is
  /// one state, which a pipeline sends once.
  void keep() {
    state_ = kUnetSkips + made_++;
    if (!parts_.empty()) parts_.back().writes = state_;
    skips_.push_back({state_, features_});
  }
  void resnet(const std::string& folder, int64_t level, bool joins = false) {
    UnetPart part{.folder = folder, .level = level, .out = sizes_.features[level]};
    if (joins) {
      part.skip_features = skips_.back().features;
      part.skip = skips_.back().state;
      skips_.pop_back();
    }
    add(std::move(part));
  }
  void transformer(const std::string& folder, int64_t level) {
    const int input = state_;
    const int64_t layers = std::max<int64_t>(1, sizes_.transformers[level]);
    for (int64_t layer = 0; layer < layers; ++layer) {
      state_ = input;
      add({.kind = UnetPart::Kind::Transformer, .folder = folder, .level = level, .layer = layer, .layers = layers});
      UnetPart& part = parts_.back();
      if (layers > 1) part.inside = inside_;
      if (!part.ends()) part.writes = inside_;
    }
  }
  void add(UnetPart part) {
    part.from = level_;
    part.in = features_;
    if (part.out == 0) part.out = features_;
    part.reads = state_;
    part.writes = kUnetHidden;
    level_ = part.level;
    features_ = part.out;
    state_ = kUnetHidden;
    parts_.push_back(std::move(part));
  }

  const UnetSizes& sizes_;
  const int inside_;  // the state behind the skips
  std::vector<UnetPart> parts_{};
  std::vector<Skip> skips_{};
  int made_ = 0, state_ = kUnetHidden;
  int64_t level_ = 0, features_;
};

}  // namespace unet

ops::PictureSize unet_level_size(ops::PictureSize size, int64_t level) {
  for (int64_t i = 0; i < level; ++i) size = {(size.height + 1) / 2, (size.width + 1) / 2};
  return size;
}

std::vector<UnetPart> unet_parts(const UnetSizes& sizes) {
  const auto levels = static_cast<int64_t>(sizes.features.size());
  unet::Chain chain(sizes);
  for (int64_t level = 0; level < levels; ++level) chain.down(level, level + 1 == levels);
  chain.middle();
  for (int64_t level = levels - 1; level >= 0; --level) chain.up(level, levels - 1 - level);
  return chain.take();
}

int64_t unet_elements_summed(const UnetSizes& sizes) {
  int64_t elements = 0;
  for (const UnetPart& part : unet_parts(sizes)) {
    const bool is_resnet = part.kind == UnetPart::Kind::Resnet;
    if (!is_resnet && part.kind != UnetPart::Kind::Transformer) continue;
    const int64_t of_state = unet_level_size({sizes.height, sizes.width}, part.level).pixels() * part.out;
    elements += is_resnet ? of_state : 3 * of_state;
  }
  return elements;
}

}  // namespace colossal::models
