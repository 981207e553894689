#include "colossal/data/batch_fields.h"

#include <utility>

namespace colossal::data {

using tensor::Dim;

tensor::Batch text_batch(at::Tensor ids, at::Tensor labels, at::Tensor positions, at::Tensor documents, Dim of_labels) {
  tensor::Batch batch;
  batch.add("ids", {std::move(ids), {Dim::Row, Dim::Token}});
  batch.add("labels", {std::move(labels), {Dim::Row, of_labels}, kIgnored});
  if (positions.defined()) batch.add("positions", {std::move(positions), {Dim::Row, Dim::Token}});
  if (documents.defined())
    batch.add("documents", {.tensor = std::move(documents), .dims = {Dim::Row, Dim::Token}, .stays_whole = true});
  return batch;
}

tensor::Batch image_batch(at::Tensor images, at::Tensor labels) {
  tensor::Batch batch;
  batch.add("images", {std::move(images), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("labels", {std::move(labels), {Dim::Row, Dim::Other}, kIgnored});
  return batch;
}

}  // namespace colossal::data
