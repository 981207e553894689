// The fields of batches for the models of the library. This layer makes such batches, and so may a program.
//
//   const tensor::Batch batch = data::text_batch(ids, labels, positions);   // "ids", "labels", "positions"
//   const tensor::Batch pictures = data::image_batch(images, classes);      // "images", "labels"
#pragma once
#include "colossal/data/ignored_label.h"
#include "colossal/tensor/batch.h"

namespace colossal::data {

/// Returns a batch with the fields of text, int64 tensors on the host:
///   ids [B, S]        tokens
///   labels [B, T]     the token to predict, or kIgnored; with `of_labels` Other the classes [B, 1] of the texts
///   positions [B, S]  the position of a token within its document; undefined = no field
///   documents [B, S]  the number of the token's document within the row: 0, 1, ... With this field a token attends
///                     only to its own document. Batches of joined documents, whose tokens attend to each other, have
///                     no such field. It stays on the host; its tokens are not split over ranks in advance.
///                     Undefined = no field
tensor::Batch text_batch(at::Tensor ids, at::Tensor labels, at::Tensor positions = {}, at::Tensor documents = {},
                         tensor::Dim of_labels = tensor::Dim::Token);

/// Returns a batch with the fields `images` [B, C, side, side] and `labels` [B, 1], the class of each image or
/// kIgnored.
tensor::Batch image_batch(at::Tensor images, at::Tensor labels);

}  // namespace colossal::data
