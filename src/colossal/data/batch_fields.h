// The fields of the batches that this layer makes, and of batches that a program makes for the models of the library.
//
//   const tensor::Batch batch = data::text_batch(ids, labels, positions);   // "ids", "labels", "positions"
//   const tensor::Batch pictures = data::image_batch(images, classes);      // "images", "labels"
#pragma once
#include "colossal/tensor/batch.h"

namespace colossal::data {

constexpr int64_t kIgnored = -100;  ///< a label that has no part in the loss

/// Fields of text, int64 on the host:
///   ids [B, S]        tokens
///   labels [B, T]     what is to be predicted, kIgnored where nothing is; `of_labels` Other: classes [B, 1] of texts
///   positions [B, S]  of a token within its document; undefined: no field
///   documents [B, S]  0, 1, ... within the row. A token sees its own document alone, so a batch of joined documents
///                     has no such field. It stays whole on the host. Undefined: no field
tensor::Batch text_batch(at::Tensor ids, at::Tensor labels, at::Tensor positions = {}, at::Tensor documents = {},
                         tensor::Dim of_labels = tensor::Dim::Token);

/// Fields `images` [B, C, side, side] and `labels` [B, 1], the class of each image or kIgnored.
tensor::Batch image_batch(at::Tensor images, at::Tensor labels);

}  // namespace colossal::data
