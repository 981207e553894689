// The blocks of an MMDiT, in which the words of a caption and the patches of a picture or clip attend to each other as
// one sequence (models/families/mmdit.h).
//
//   const auto places = std::make_shared<const MmditPlaces>(own, layers);
//   for (int64_t i = 0; i < shape.layers; ++i) model.blocks.push_back(make_mmdit_block(shape, i, places, layers));
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "colossal/models/families/mmdit.h"
#include "colossal/models/model.h"
#include "colossal/nn/layers.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// The states: the patches [B, patches, H], the words [B, words, H], and the condition [B, H].
constexpr int kMmditHidden = 0, kMmditText = 1, kMmditCondition = 2;

/// The patches of a picture, or of all frames of a clip, in the order frame, row, column.
struct MmditGrid {
  int64_t frames = 1, rows = 0, columns = 0;
  int64_t count() const { return frames * rows * columns; }
  bool operator==(const MmditGrid&) const = default;
};

/// Returns the patches that cover the pictures or clips of a batch.
MmditGrid mmdit_grid(const MmditSizes& own, const tensor::Batch& batch);
/// Returns the number of words of the captions of a batch, pads included.
int64_t mmdit_words(const tensor::Batch& batch);

/// The position of each token along each axis that turns: words are at 0, patches in their frame, row and column. All
/// blocks of a stage share one. Thread safety: full.
class MmditPlaces {
 public:
  MmditPlaces(const MmditSizes& own, nn::Layers& make);
  /// Returns [words + patches, axes], int64. The result is kept, and returned again for batches of the same sizes.
  at::Tensor of(const tensor::Batch& batch) const;

 private:
  MmditSizes own_;
  at::TensorOptions integers_;
  mutable std::mutex mutex_;
  mutable at::Tensor known_;
  mutable int64_t known_words_ = 0;
  mutable MmditGrid known_grid_;
};

/// Returns block `index` of a model of the shape: a double block, in which words and patches have layers of their own,
/// or one of the last MmditSizes::single ones, in which they share the layers. The last block does not write the words.
/// `places` may be null if nothing turns.
Block make_mmdit_block(const ModelShape& shape, int64_t index, const std::shared_ptr<const MmditPlaces>& places,
                       nn::Layers& layers);

}  // namespace colossal::models
