// Plain modules of torch::nn, as a user writes them, for the tests of auto-parallelism. None knows this library.
//
//   Mlp net;
//   fill(net);
//   const TracedModule traced = trace_loss(net, loss_of(net), net.inputs(8));
#pragma once
#include <ATen/ATen.h>
#include <torch/nn.h>

#include <string>
#include <vector>

#include "colossal/trace/trace.h"

namespace colossal::trace::test {

/// Fills the parameters with values of a sine. No random generator: modules of several ranks are made concurrently.
inline void fill(torch::nn::Module& module, double phase = 0) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& p : module.parameters())
    p.copy_(at::arange(p.numel(), at::kDouble).add(++phase).mul(1.7).sin().mul(0.3).view(p.sizes()));
}

/// Returns values in [-1, 1] that `phase` tells apart.
inline at::Tensor wave(at::IntArrayRef shape, double phase, at::ScalarType dtype = at::kDouble) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).add(phase).mul(0.37).sin().view(shape).to(dtype);
}

/// Returns class numbers or token ids below `classes`.
inline at::Tensor numbers(at::IntArrayRef shape, int64_t classes, int64_t phase) {
  return at::arange(c10::multiply_integers(shape), at::kLong).mul(7).add(phase).remainder(classes).view(shape);
}

/// Two linear layers with a norm before and an in-place relu between. `frozen` freezes the first bias.
struct Mlp : torch::nn::Module {
  static constexpr int64_t kWidth = 8, kInner = 16;
  explicit Mlp(bool frozen = false) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    fc1 = register_module("fc1", torch::nn::Linear(kWidth, kInner));
    fc2 = register_module("fc2", torch::nn::Linear(kInner, kWidth));
    if (frozen) fc1->bias.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) { return fc2->forward(fc1->forward(norm->forward(x)).relu_()); }
  at::Tensor loss(const std::vector<at::Tensor>& in) { return at::mse_loss(forward(in[0]), in[1]); }
  std::vector<at::Tensor> inputs(int64_t rows, int64_t step = 0) const {
    const double phase = 100.0 * static_cast<double>(step);
    return {wave({rows, kWidth}, phase), wave({rows, kWidth}, phase + 50)};
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};

/// A linear layer with an operator of two results, both of which the loss reads.
struct Largest : torch::nn::Module {
  static constexpr int64_t kWidth = 8;
  Largest() { fc = register_module("fc", torch::nn::Linear(kWidth, kWidth)); }
  at::Tensor loss(const std::vector<at::Tensor>& in) {
    const auto [values, indices] = at::topk(fc->forward(in[0]), kWidth / 2, /*dim=*/1);
    return at::mse_loss(values, in[1].gather(1, indices));
  }
  std::vector<at::Tensor> inputs(int64_t rows, int64_t step = 0) const {
    const double phase = 100.0 * static_cast<double>(step);
    return {wave({rows, kWidth}, phase), wave({rows, kWidth}, phase + 50)};
  }
  torch::nn::Linear fc{nullptr};
};

/// Two convolutions with batch norm, pooling and a classifier.
struct ConvNet : torch::nn::Module {
  static constexpr int64_t kChannels = 2, kSide = 8, kClasses = 4;
  ConvNet() {
    using Options = torch::nn::Conv2dOptions;
    conv1 = register_module("conv1", torch::nn::Conv2d(Options(kChannels, 8, 3).padding(1).bias(false)));
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(8));
    conv2 = register_module("conv2", torch::nn::Conv2d(Options(8, 8, 3).padding(1).groups(8)));
    bn2 = register_module("bn2", torch::nn::BatchNorm2d(8));
    head = register_module("head", torch::nn::Linear(8, kClasses));
  }
  at::Tensor forward(at::Tensor x) {
    x = at::max_pool2d(bn1->forward(conv1->forward(x)).relu_(), {2, 2});
    x = at::relu(bn2->forward(conv2->forward(x)) + x);
    return head->forward(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
  at::Tensor loss(const std::vector<at::Tensor>& in) { return at::cross_entropy_loss(forward(in[0]), in[1]); }
  std::vector<at::Tensor> inputs(int64_t rows, int64_t step = 0) const {
    return {wave({rows, kChannels, kSide, kSide}, 100.0 * static_cast<double>(step)), numbers({rows}, kClasses, step)};
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  torch::nn::Linear head{nullptr};
};

/// One block of Transformer: pre-norm, attention, a feed-forward layer, residuals, dropout.
struct TransformerBlock : torch::nn::Module {
  TransformerBlock(int64_t width, int64_t heads, double dropout) : heads(heads) {
    ln1 = register_module("ln1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    proj = register_module("proj", torch::nn::Linear(width, width));
    ln2 = register_module("ln2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    fc1 = register_module("fc1", torch::nn::Linear(width, 4 * width));
    fc2 = register_module("fc2", torch::nn::Linear(4 * width, width));
    drop = register_module("drop", torch::nn::Dropout(dropout));
  }
  at::Tensor forward(at::Tensor x) {
    const int64_t rows = x.size(0), length = x.size(1), width = x.size(2);
    std::vector<at::Tensor> parts = qkv->forward(ln1->forward(x)).chunk(3, -1);
    for (at::Tensor& part : parts) part = part.view({rows, length, heads, width / heads}).transpose(1, 2);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + drop->forward(proj->forward(mixed.transpose(1, 2).reshape({rows, length, width})));
    return x + drop->forward(fc2->forward(at::gelu(fc1->forward(ln2->forward(x)))));
  }
  int64_t heads;
  torch::nn::LayerNorm ln1{nullptr}, ln2{nullptr};
  torch::nn::Linear qkv{nullptr}, proj{nullptr}, fc1{nullptr}, fc2{nullptr};
  torch::nn::Dropout drop{nullptr};
};

/// A decoder of token ids: embeddings of tokens and positions, blocks, a norm, a head. If `tied`, the head is the
/// weight of the embedding, registered twice.
struct Transformer : torch::nn::Module {
  static constexpr int64_t kVocabulary = 16, kLength = 4, kWidth = 8, kHeads = 4;
  explicit Transformer(int64_t blocks = 2, double dropout = 0, bool tied = false) {
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    positions = register_parameter("positions", at::zeros({kLength, kWidth}));
    for (int64_t i = 0; i < blocks; ++i) layers->push_back(std::make_shared<TransformerBlock>(kWidth, kHeads, dropout));
    register_module("layers", layers);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head = register_parameter("head", tied ? tokens->weight : at::zeros({kVocabulary, kWidth}));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens->forward(ids) + positions;
    for (const auto& layer : *layers) x = layer->as<TransformerBlock>()->forward(x);
    return at::linear(norm->forward(x), head);
  }
  at::Tensor loss(const std::vector<at::Tensor>& in) {
    return at::cross_entropy_loss(forward(in[0]).view({-1, kVocabulary}), in[1].view({-1}));
  }
  std::vector<at::Tensor> inputs(int64_t rows, int64_t step = 0) const {
    return {numbers({rows, kLength}, kVocabulary, step), numbers({rows, kLength}, kVocabulary, 3 * step + 1)};
  }
  torch::nn::Embedding tokens{nullptr};
  at::Tensor positions, head;
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm{nullptr};
};

/// Sizes of a decoder like LLaMA.
struct LlamaSizes {
  int64_t blocks = 2, width = 16, heads = 4, kv_heads = 2, inner = 32, vocabulary = 16;
};

/// A decoder like LLaMA, written with operators: norms of root mean squares, rotated halves, grouped heads, a gate.
struct Llama : torch::nn::Module {
  struct Block : torch::nn::Module {
    Block(const LlamaSizes& s, const at::TensorOptions& options) : sizes(s), head(s.width / s.heads) {
      norm1 = register_parameter("norm1", at::ones({s.width}, options));
      wq = register_parameter("wq", at::empty({s.width, s.width}, options));
      wk = register_parameter("wk", at::empty({s.kv_heads * head, s.width}, options));
      wv = register_parameter("wv", at::empty({s.kv_heads * head, s.width}, options));
      wo = register_parameter("wo", at::empty({s.width, s.width}, options));
      norm2 = register_parameter("norm2", at::ones({s.width}, options));
      gate = register_parameter("gate", at::empty({s.inner, s.width}, options));
      up = register_parameter("up", at::empty({s.inner, s.width}, options));
      down = register_parameter("down", at::empty({s.width, s.inner}, options));
    }
    static at::Tensor normed(const at::Tensor& x, const at::Tensor& weight) {
      return x * at::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + 1e-5) * weight;
    }
    at::Tensor heads_of(const at::Tensor& x, int64_t count) const {
      return x.view({x.size(0), x.size(1), count, head}).transpose(1, 2);
    }
    at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) const {
      const std::vector<at::Tensor> halves = x.chunk(2, -1);
      return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
    }
    at::Tensor forward(at::Tensor x, const at::Tensor& cos, const at::Tensor& sin) {
      const at::Tensor h = normed(x, norm1);
      const at::Tensor q = rotated(heads_of(at::linear(h, wq), sizes.heads), cos, sin);
      const at::Tensor k = rotated(heads_of(at::linear(h, wk), sizes.kv_heads), cos, sin);
      const at::Tensor v = heads_of(at::linear(h, wv), sizes.kv_heads);
      const at::Tensor mixed = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true, std::nullopt,
                                                                sizes.heads != sizes.kv_heads);
      x = x + at::linear(mixed.transpose(1, 2).reshape(x.sizes()), wo);
      const at::Tensor g = normed(x, norm2);
      return x + at::linear(at::silu(at::linear(g, gate)) * at::linear(g, up), down);
    }
    LlamaSizes sizes;
    int64_t head;
    at::Tensor norm1, wq, wk, wv, wo, norm2, gate, up, down;
  };

  explicit Llama(LlamaSizes s = {}, at::TensorOptions options = at::kDouble) : sizes(s) {
    tokens = register_parameter("tokens", at::empty({s.vocabulary, s.width}, options));
    for (int64_t i = 0; i < s.blocks; ++i) layers->push_back(std::make_shared<Block>(s, options));
    register_module("layers", layers);
    norm = register_parameter("norm", at::ones({s.width}, options));
    head = register_parameter("head", at::empty({s.vocabulary, s.width}, options));
  }
  at::Tensor loss(const std::vector<at::Tensor>& in) {
    at::Tensor x = at::embedding(tokens, in[0]);
    const int64_t half = sizes.width / sizes.heads / 2;
    const at::Tensor places = at::arange(in[0].size(1), x.options()).unsqueeze(1);
    const at::Tensor speeds = at::pow(10000.0, at::arange(half, x.options()).mul(-1.0 / static_cast<double>(half)));
    const at::Tensor angles = (places * speeds).repeat({1, 2});
    const at::Tensor cos = angles.cos(), sin = angles.sin();
    for (const auto& layer : *layers) x = layer->as<Block>()->forward(x, cos, sin);
    const at::Tensor logits = at::linear(Block::normed(x, norm), head);
    return at::cross_entropy_loss(logits.view({-1, sizes.vocabulary}), in[1].view({-1}));
  }
  std::vector<at::Tensor> inputs(int64_t rows, int64_t step = 0) const {
    return {numbers({rows, 4}, sizes.vocabulary, step), numbers({rows, 4}, sizes.vocabulary, 3 * step + 1)};
  }
  LlamaSizes sizes;
  at::Tensor tokens, norm, head;
  torch::nn::ModuleList layers;
};

/// Returns the loss of a module that has a member `loss`, which must outlive it.
template <class Module>
Loss loss_of(Module& module) {
  return [&module](const std::vector<at::Tensor>& in) { return module.loss(in); };
}

}  // namespace colossal::trace::test
