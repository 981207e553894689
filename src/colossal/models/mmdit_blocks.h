// The blocks of an MMDiT, in which the words of a caption and the patches of a picture attend to each other as one
// sequence (models/families/mmdit.h).
//
//   for (int64_t i = 0; i < shape.layers; ++i) model.blocks.push_back(make_mmdit_block(shape, i, layers));
#pragma once
#include <cstdint>

#include "colossal/models/families/mmdit.h"
#include "colossal/models/model.h"
#include "colossal/nn/layers.h"
#include "colossal/ops/convolution.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// The states: the patches [B, patches, H], the words [B, words, H], and the condition [B, H].
constexpr int kMmditHidden = 0, kMmditText = 1, kMmditCondition = 2;

/// Returns the numbers of patches in a column and in a row of the pictures of a batch.
ops::PictureSize mmdit_patches(const MmditSizes& own, const tensor::Batch& batch);
/// Returns the number of words of the captions of a batch, pads included.
int64_t mmdit_words(const tensor::Batch& batch);

/// Returns block `index` of a model of the shape: a double block, in which words and patches have layers of their own,
/// or one of the last MmditSizes::single ones, in which they share the layers. The last block does not write the words.
Block make_mmdit_block(const ModelShape& shape, int64_t index, nn::Layers& layers);

}  // namespace colossal::models
