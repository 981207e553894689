#include "colossal/trace/operator_nodes.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "colossal/trace/meta_results.h"

namespace colossal::trace {
namespace {

int64_t named_dim(const HeardCall& call, const char* argument) {
  return positive_dim(call.argument(argument).toInt(), call.self().dim());
}

std::vector<int64_t> named_dims(const HeardCall& call, const char* argument) {
  std::vector<int64_t> dims;
  for (const int64_t dim : call.argument(argument).toIntVector()) dims.push_back(positive_dim(dim, call.self().dim()));
  return dims;
}

void describe_dim(const HeardCall& call, plan::Node& node) { node.dims = {named_dim(call, "dim")}; }

void describe_swap(const HeardCall& call, plan::Node& node) {
  node.dims = {named_dim(call, "dim0"), named_dim(call, "dim1")};
}

void describe_t(const HeardCall& call, plan::Node& node) {
  if (call.self().dim() == 2)
    node.dims = {0, 1};
  else
    node.op = "view";
}

void describe_permute(const HeardCall& call, plan::Node& node) { node.dims = named_dims(call, "dims"); }

void describe_joined(const HeardCall& call, plan::Node& node) {
  const int64_t more = node.op == "stack" ? 1 : 0;
  const at::Tensor first = call.arguments.at(0).toTensorVector().at(0);
  node.dims = {positive_dim(call.argument("dim").toInt(), first.dim() + more)};
}

void describe_reduction(const HeardCall& call, plan::Node& node) {
  if (call.index_of("dim") >= 0 && !call.argument("dim").isNone()) node.dims = named_dims(call, "dim");
}

void describe_norm(const HeardCall& call, plan::Node& node) {
  if (call.tensor("weight").defined()) return;
  node.dims.resize(call.argument("normalized_shape").toIntVector().size());
  std::iota(node.dims.begin(), node.dims.end(), call.self().dim() - static_cast<int64_t>(node.dims.size()));
}

void describe_group_norm(const HeardCall& call, plan::Node& node) { node.groups = call.argument("num_groups").toInt(); }

void describe_convolution(const HeardCall& call, plan::Node& node) {
  node.op = call.flag("transposed") ? "conv_transpose" : "conv" + std::to_string(call.tensor("weight").dim() - 2) + "d";
  node.groups = call.argument("groups").toInt();
}

/// With its running statistics batch norm is an affine function of each channel, and sums nothing over rows.
void describe_batch_norm(const HeardCall& call, plan::Node& node) {
  if (!call.flag("training")) node.op = "batch_norm_inference";
}

/// Smoothing needs the sum of all logits of a row, which ranks with blocks of the classes do not share.
void describe_cross_entropy(const HeardCall& call, plan::Node& node) {
  if (call.argument("label_smoothing").toDouble() != 0 && call.self().dim() > 1) node.dims = {1};
}

/// A rank sees the ids of its rows only, so no strategy divides a look-up that counts ids.
void describe_embedding(const HeardCall& call, plan::Node& node) {
  if (call.flag("scale_grad_by_freq")) node.op = call.name();
}

void describe_attention(const HeardCall& call, plan::Node& node) { node.causal = call.flag("is_causal"); }

const std::vector<OperatorRow>& product_rows() {
  static const std::vector<OperatorRow> rows{
      {"aten::linear", "linear"},
      {"aten::matmul", "matmul"},
      {"aten::mm", "matmul"},
      {"aten::bmm", "bmm"},
      {"aten::addmm", "addmm"},
      {"aten::conv1d", "conv1d", describe_convolution, convolution_result},
      {"aten::conv2d", "conv2d", describe_convolution, convolution_result},
      {"aten::conv3d", "conv3d", describe_convolution, convolution_result},
      {"aten::convolution", "conv", describe_convolution, convolution_result},
      {"aten::embedding", "embedding", describe_embedding, embedding_result},
      {"aten::layer_norm", "layer_norm", describe_norm, like_first},
      {"aten::rms_norm", "rms_norm", describe_norm, like_first},
      {"aten::batch_norm", "batch_norm", describe_batch_norm, like_first},
      {"aten::group_norm", "group_norm", describe_group_norm, like_first},
      {"aten::scaled_dot_product_attention", "scaled_dot_product_attention", describe_attention, attention_result},
      {"aten::softmax.int", "softmax", describe_dim},
      {"aten::_softmax", "softmax", describe_dim},
      {"aten::_safe_softmax", "softmax", describe_dim, like_first},
      {"aten::log_softmax.int", "log_softmax", describe_dim},
      {"aten::_log_softmax", "log_softmax", describe_dim},
      {"aten::dropout", "dropout", nullptr, like_first},
      {"aten::max_pool1d", "max_pool1d"},
      {"aten::max_pool2d", "max_pool2d"},
      {"aten::max_pool3d", "max_pool3d"},
      {"aten::avg_pool1d", "avg_pool1d"},
      {"aten::avg_pool2d", "avg_pool2d"},
      {"aten::avg_pool3d", "avg_pool3d"},
      {"aten::adaptive_avg_pool1d", "adaptive_avg_pool1d", nullptr, pooled_result},
      {"aten::adaptive_avg_pool2d", "adaptive_avg_pool2d", nullptr, pooled_result},
      {"aten::adaptive_avg_pool3d", "adaptive_avg_pool3d", nullptr, pooled_result},
      {"aten::adaptive_max_pool2d", "adaptive_max_pool2d"},
      {"aten::index_select", "index_select", nullptr, index_select_result},
  };
  return rows;
}

const std::vector<OperatorRow>& shape_rows() {
  static const std::vector<OperatorRow> rows{
      {"aten::view", "reshape"},
      {"aten::_unsafe_view", "reshape"},
      {"aten::reshape", "reshape"},
      {"aten::flatten.using_ints", "flatten"},
      {"aten::squeeze", "squeeze"},
      {"aten::unsqueeze", "unsqueeze"},
      {"aten::permute", "permute", describe_permute},
      {"aten::transpose.int", "transpose", describe_swap},
      {"aten::t", "transpose", describe_t},
      {"aten::expand", "expand"},
      {"aten::slice.Tensor", "slice", describe_dim},
      {"aten::select.int", "select", describe_dim},
      {"aten::cat", "cat", describe_joined},
      {"aten::stack", "stack", describe_joined},
      {"aten::sum", "sum", describe_reduction},
      {"aten::mean", "mean", describe_reduction},
      {"aten::amax", "amax", describe_reduction},
      {"aten::amin", "amin", describe_reduction},
      {"aten::cross_entropy_loss", "cross_entropy", describe_cross_entropy, class_loss_result},
      {"aten::nll_loss", "nll_loss", nullptr, class_loss_result},
      {"aten::nll_loss_nd", "nll_loss", nullptr, class_loss_result},
      {"aten::mse_loss", "mse_loss", nullptr, loss_result},
      {"aten::l1_loss", "l1_loss", nullptr, loss_result},
      {"aten::smooth_l1_loss", "smooth_l1_loss", nullptr, loss_result},
      {"aten::binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits", nullptr, loss_result},
      {"aten::binary_cross_entropy", "binary_cross_entropy", nullptr, loss_result},
      {"aten::to", "to"},
      {"aten::_to_copy", "to"},
      {"aten::where.self", "where", nullptr, where_result},
      {"aten::rsub", "sub"},
      {"aten::detach", "detach"},
      {"aten::alias", "clone"},
      {"aten::clamp_min", "clamp"},
      {"aten::clamp_max", "clamp"},
      {"aten::bitwise_not", "logical_not"},
      {"aten::bitwise_and", "logical_and"},
      {"aten::bitwise_or", "logical_or"},
      {"aten::fill", "fill"},
      {"aten::zero", "fill"},
      {"aten::zeros_like", "fill"},
      {"aten::ones_like", "fill"},
      {"aten::full_like", "fill"},
      {"aten::empty_like", "fill"},
  };
  return rows;
}

/// Operators whose results follow from the elements at the same place. Their nodes have the names of LibTorch.
const std::vector<const char*>& elementwise_names() {
  static const std::vector<const char*> names{
      "add",         "sub",         "mul",         "div",        "neg",         "pow",     "abs",  "gelu", "silu",
      "softplus",    "elu",         "relu",        "leaky_relu", "hardtanh",    "log",     "sin",  "cos",  "square",
      "clamp",       "exp",         "maximum",     "minimum",    "masked_fill", "sigmoid", "tanh", "sqrt", "rsqrt",
      "eq",          "reciprocal",  "clone",       "contiguous", "ne",          "lt",      "le",   "gt",   "ge",
      "erf",         "log1p",       "expm1",       "floor",      "ceil",        "round",   "sign", "mish", "hardswish",
      "hardsigmoid", "logical_not", "logical_and", "logical_or",
  };
  return names;
}

}  // namespace

int64_t positive_dim(int64_t dim, int64_t dims) { return dim < 0 ? dim + std::max<int64_t>(dims, 1) : dim; }

const OperatorRow* find_row(const std::string& full_name) {
  static const auto table = [] {
    std::map<std::string, OperatorRow> all;
    for (const auto* rows : {&product_rows(), &shape_rows()})
      for (const OperatorRow& row : *rows) all.emplace(row.name, row);
    for (const char* name : elementwise_names()) all.emplace(std::string("aten::") + name, OperatorRow{name, name});
    return all;
  }();
  // Overloads with other meanings than the rest: a dtype, an output, names of dimensions.
  for (const char* other : {"view.dtype", "_out", ".out", "Dimname", ".padding", "to.other"})
    if (full_name.find(other) != std::string::npos) return nullptr;
  auto found = table.find(full_name);
  if (found == table.end()) found = table.find(full_name.substr(0, full_name.find('.')));
  return found == table.end() ? nullptr : &found->second;
}

}  // namespace colossal::trace
