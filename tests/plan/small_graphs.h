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

}  // namespace colossal::plan::test
