// Graphs of small modules, as a tracer would make them.
#pragma once
#include <string>
#include <vector>

#include "colossal/plan/graph.h"

namespace colossal::plan::test {

/// Builds a graph node by node.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string dtype = "float32") : dtype_(std::move(dtype)) {}
  std::string parameter(const std::string& name, std::vector<int64_t> shape) {
    made.parameters.push_back({name, {std::move(shape), dtype_}});
    return name;
  }
  std::string node(const std::string& name, const std::string& op, std::vector<std::string> inputs,
                   std::vector<int64_t> shape) {
    made.nodes.push_back({.name = name, .op = op, .inputs = std::move(inputs), .output = {std::move(shape), dtype_}});
    return name;
  }
  Graph settled() {
    made.settle();
    return made;
  }
  Graph made;

 private:
  std::string dtype_;
};

/// Returns norm, linear, gelu, linear and a squared error. With the norm the input of the first linear has a gradient.
inline Graph mlp(int64_t rows, int64_t hidden, int64_t inner, const std::string& dtype = "float32") {
  GraphBuilder b(dtype);
  b.parameter("norm.weight", {hidden});
  b.parameter("fc1.weight", {inner, hidden});
  b.parameter("fc1.bias", {inner});
  b.parameter("fc2.weight", {hidden, inner});
  b.parameter("fc2.bias", {hidden});
  b.node("x", "input", {}, {rows, hidden});
  b.node("y", "input", {}, {rows, hidden});
  b.node("norm", "layer_norm", {"x", "norm.weight"}, {rows, hidden});
  b.node("fc1", "linear", {"norm", "fc1.weight", "fc1.bias"}, {rows, inner});
  b.node("gelu", "gelu", {"fc1"}, {rows, inner});
  b.node("fc2", "linear", {"gelu", "fc2.weight", "fc2.bias"}, {rows, hidden});
  b.node("loss", "mse_loss", {"fc2", "y"}, {});
  return b.settled();
}

/// Sizes of a decoder of the LLaMA family.
struct DecoderSizes {
  int64_t batch = 8, sequence = 4096, hidden = 4096, heads = 32, kv_heads = 8, inner = 14336, vocabulary = 128256;
  int layers = 32;
  int64_t head() const { return hidden / heads; }
};

/// Adds a rotary embedding of [batch, heads, sequence, size]: x cos + (-x2, x1) sin.
inline std::string add_rotary(GraphBuilder& b, const std::string& name, const std::string& x, int64_t heads,
                              const DecoderSizes& sizes) {
  const std::vector<int64_t> whole{sizes.batch, heads, sizes.sequence, sizes.head()};
  std::vector<int64_t> half = whole;
  half[3] /= 2;
  b.node(name + "_first", "slice", {x}, half);
  b.made.nodes.back().dims = {3};
  b.node(name + "_second", "slice", {x}, half);
  b.made.nodes.back().dims = {3};
  b.node(name + "_neg", "neg", {name + "_second"}, half);
  b.node(name + "_turned", "cat", {name + "_neg", name + "_first"}, whole);
  b.made.nodes.back().dims = {3};
  b.node(name + "_cos", "mul", {x, "cos"}, whole);
  b.node(name + "_sin", "mul", {name + "_turned", "sin"}, whole);
  return b.node(name + "_rotary", "add", {name + "_cos", name + "_sin"}, whole);
}

/// Adds a linear layer to heads: [batch, sequence, hidden] to [batch, heads, sequence, size].
inline std::string add_heads(GraphBuilder& b, const std::string& name, const std::string& x, int64_t heads,
                             const DecoderSizes& sizes) {
  const int64_t width = heads * sizes.head();
  b.parameter(name + ".weight", {width, sizes.hidden});
  b.node(name, "linear", {x, name + ".weight"}, {sizes.batch, sizes.sequence, width});
  b.node(name + "_view", "view", {name}, {sizes.batch, sizes.sequence, heads, sizes.head()});
  b.node(name + "_heads", "transpose", {name + "_view"}, {sizes.batch, heads, sizes.sequence, sizes.head()});
  b.made.nodes.back().dims = {1, 2};
  return name + "_heads";
}

/// Adds a block of a decoder: attention with rotary embeddings, and a gated mlp. Returns the name of its output.
inline std::string add_decoder_block(GraphBuilder& b, const std::string& block, const std::string& x,
                                     const DecoderSizes& sizes) {
  const std::vector<int64_t> rows{sizes.batch, sizes.sequence, sizes.hidden};
  const auto linear = [&](const std::string& name, const std::string& from, int64_t in, int64_t out) {
    b.parameter(block + name + ".weight", {out, in});
    return b.node(block + name, "linear", {from, block + name + ".weight"}, {sizes.batch, sizes.sequence, out});
  };
  const auto norm = [&](const std::string& name, const std::string& from) {
    b.parameter(block + name + ".weight", {sizes.hidden});
    return b.node(block + name, "rms_norm", {from, block + name + ".weight"}, rows);
  };
  const std::string first = norm("attention_norm", x);
  std::string q = add_heads(b, block + "wq", first, sizes.heads, sizes);
  std::string k = add_heads(b, block + "wk", first, sizes.kv_heads, sizes);
  const std::string v = add_heads(b, block + "wv", first, sizes.kv_heads, sizes);
  q = add_rotary(b, block + "q", q, sizes.heads, sizes);
  k = add_rotary(b, block + "k", k, sizes.kv_heads, sizes);
  b.node(block + "attention", "scaled_dot_product_attention", {q, k, v},
         {sizes.batch, sizes.heads, sizes.sequence, sizes.head()});
  b.made.nodes.back().causal = true;
  b.node(block + "attention_rows", "transpose", {block + "attention"},
         {sizes.batch, sizes.sequence, sizes.heads, sizes.head()});
  b.made.nodes.back().dims = {1, 2};
  b.node(block + "attention_flat", "view", {block + "attention_rows"}, rows);
  const std::string out = linear("wo", block + "attention_flat", sizes.hidden, sizes.hidden);
  const std::string middle = b.node(block + "attention_add", "add", {x, out}, rows);
  const std::string second = norm("mlp_norm", middle);
  linear("gate", second, sizes.hidden, sizes.inner);
  const std::vector<int64_t> wide{sizes.batch, sizes.sequence, sizes.inner};
  b.node(block + "silu", "silu", {block + "gate"}, wide);
  linear("up", second, sizes.hidden, sizes.inner);
  b.node(block + "gated", "mul", {block + "silu", block + "up"}, wide);
  linear("down", block + "gated", sizes.inner, sizes.hidden);
  return b.node(block + "mlp_add", "add", {middle, block + "down"}, rows);
}

/// Returns a decoder with a cross entropy over its vocabulary. The defaults are LLaMA-3 8B, 37 nodes a block.
inline Graph decoder(const DecoderSizes& sizes = {}) {
  GraphBuilder b("bfloat16");
  b.node("ids", "input", {}, {sizes.batch, sizes.sequence});
  b.made.nodes.back().output.dtype = "int64";
  b.node("targets", "input", {}, {sizes.batch, sizes.sequence});
  b.made.nodes.back().output.dtype = "int64";
  for (const char* name : {"cos", "sin"}) b.node(name, "constant", {}, {sizes.sequence, sizes.head()});
  b.parameter("embedding.weight", {sizes.vocabulary, sizes.hidden});
  const std::vector<int64_t> rows{sizes.batch, sizes.sequence, sizes.hidden};
  std::string x = b.node("embedding", "embedding", {"ids", "embedding.weight"}, rows);
  for (int i = 0; i < sizes.layers; ++i) x = add_decoder_block(b, "layers." + std::to_string(i) + ".", x, sizes);
  b.parameter("norm.weight", {sizes.hidden});
  b.node("norm", "rms_norm", {x, "norm.weight"}, rows);
  b.parameter("head.weight", {sizes.vocabulary, sizes.hidden});
  b.node("head", "linear", {"norm", "head.weight"}, {sizes.batch, sizes.sequence, sizes.vocabulary});
  b.node("logits", "view", {"head"}, {sizes.batch * sizes.sequence, sizes.vocabulary});
  b.node("labels", "view", {"targets"}, {sizes.batch * sizes.sequence});
  b.made.nodes.back().output.dtype = "int64";
  b.node("loss", "cross_entropy", {"logits", "labels"}, {});
  return b.settled();
}

}  // namespace colossal::plan::test
