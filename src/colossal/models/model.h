// A model as every runtime sees it: an embedding, a list of blocks, a norm and a head. Pipelines cut the list; recomputation and
// prefetch use the borders of its blocks; decoding passes a cache through the same blocks.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/layers.h"

namespace colossal::models {

/// hidden [B, S, H] -> hidden [B, S, H] (the embedding: token ids [B, S] or images [B, C, side, side] -> hidden).
using Block = std::function<at::Tensor(const at::Tensor&, const nn::Step&)>;

struct Model {
  ModelShape shape;
  Block embed;
  std::vector<Block> blocks;
  Block norm;                  ///< of a model of images also the choice of the class token: [B, S, H] -> [B, 1, H]
  std::shared_ptr<nn::LossHead> head;
  int64_t kv_heads_local = 0;  ///< what a rank's KV cache holds a layer
  int64_t batch_parts = 1;     ///< nn::Layers::batch_parts() of the layout: every batch must divide by it
};

/// What the head is given, model.norm's result, this rank's part of it; of token ids [B, S] or images. Advances step.cache by S where
/// there is one.
at::Tensor hidden_states(const Model& model, const at::Tensor& inputs, const nn::Step& step);

/// An empty cache for `batch` sequences of at most `capacity` tokens on this rank.
nn::KvCache make_cache(const Model& model, int64_t batch, int64_t capacity, at::TensorOptions options);

}  // namespace colossal::models
