#include "colossal/plan/operators.h"

#include <algorithm>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::plan {
namespace {

using Shape = std::vector<int64_t>;

/// Builds an IndexedOperator, and checks that dimensions of one index have one size.
class Indexer {
 public:
  Indexer(const Graph& graph, int node) : graph_(graph), node_(graph.nodes[node]), sources_(graph.operands[node]) {
    for (const Source source : sources_) made.operands.emplace_back(graph.type_of(source).shape.size(), -1);
    made.output.assign(node_.output.shape.size(), -1);
  }

  const Node& node() const { return node_; }
  const Shape& out() const { return node_.output.shape; }
  int count() const { return static_cast<int>(sources_.size()); }
  const Shape& in(int operand) const { return graph_.type_of(sources_[operand]).shape; }
  bool names_dim(int64_t dim) const { return std::find(node_.dims.begin(), node_.dims.end(), dim) != node_.dims.end(); }
  int64_t dim() const {
    check(!node_.dims.empty(), "`dims` must name a dimension");
    return node_.dims[0];
  }

  void check(bool ok, const std::string& rule) const {
    if (ok) return;
    std::string shapes;
    for (int i = 0; i < count(); ++i) shapes += (i == 0 ? "" : ", ") + print_shape(in(i));
    throw Error("graph", concat("node ", printable(node_.name), " (", printable(node_.op), "): ", rule, ": got ",
                                shapes.empty() ? "no operand" : shapes, " to ", print_shape(out())));
  }
  void takes(int least, int most) const {
    check(count() >= least && count() <= most, concat("the operator takes ", least, " to ", most, " operands"));
  }
  void has_dims(int operand, size_t dims) const {
    check(in(operand).size() == dims, concat("operand ", operand, " must have ", dims, " dimensions"));
  }

  int add(const std::string& name, bool splits = true) {
    made.indices.push_back({name, splits, true});
    sizes_.push_back(-1);
    return static_cast<int>(made.indices.size()) - 1;
  }
  void of_operand(int operand, size_t dim, int index, bool any_size = false) {
    check(dim < in(operand).size(), concat("operand ", operand, " has too few dimensions"));
    made.operands[operand][dim] = index;
    if (!any_size) agree(index, in(operand)[dim]);
  }
  void of_output(size_t dim, int index, bool any_size = false) {
    check(dim < out().size(), "the output has too few dimensions");
    made.output[dim] = index;
    made.indices[index].summed = false;
    if (!any_size) agree(index, out()[dim]);
  }
  /// Joins the dimensions of an operand with those of the output, aligned at the last one, as broadcasting does.
  void broadcast(int operand) {
    const size_t dims = in(operand).size(), skipped = out().size() - dims;
    check(dims <= out().size(), "an operand must not have more dimensions than the output");
    for (size_t dim = 0; dim < dims; ++dim) {
      const int index = made.output[dim + skipped];
      if (index < 0 || (in(operand)[dim] == 1 && out()[dim + skipped] != 1)) continue;
      of_operand(operand, dim, index);
    }
  }
  /// Adds an index for each dimension of the output. A dimension that the node names is not split.
  void index_output(bool dims_split = false) {
    for (size_t dim = 0; dim < out().size(); ++dim)
      of_output(dim, add("dim" + std::to_string(dim), dims_split || !names_dim(static_cast<int64_t>(dim))));
  }

  IndexedOperator made;

 private:
  void agree(int index, int64_t size) {
    if (sizes_[index] < 0) sizes_[index] = size;
    check(sizes_[index] == size, concat("the dimensions of `", made.indices[index].name, "` must have one size"));
  }
  const Graph& graph_;
  const Node& node_;
  const std::vector<Source>& sources_;
  std::vector<int64_t> sizes_;
};

double product_of(const Shape& shape) {
  double product = 1;
  for (const int64_t size : shape) product *= static_cast<double>(size);
  return product;
}

void index_source(Indexer& x) {
  x.takes(0, 0);
  x.made.work = Work::Source;
  x.index_output();
}

void index_elementwise(Indexer& x) {
  x.index_output(true);
  for (int i = 0; i < x.count(); ++i) x.broadcast(i);
}

void index_activation(Indexer& x) {
  index_elementwise(x);
  x.made.saves_operands = true;
}

void index_from_output(Indexer& x) {  // relu, sigmoid, tanh, exp: the gradient follows from the output
  index_elementwise(x);
  x.made.saves_output = true;
}

void index_linear(Indexer& x) {
  x.takes(2, 3);
  x.has_dims(1, 2);
  x.check(!x.in(0).empty() && x.in(0).size() == x.out().size(), "input and output must have the same dimensions");
  const size_t last = x.out().size() - 1;
  for (size_t dim = 0; dim < last; ++dim) {
    const int rows = x.add("dim" + std::to_string(dim));
    x.of_operand(0, dim, rows);
    x.of_output(dim, rows);
  }
  const int in = x.add("in"), out = x.add("out");
  x.of_operand(0, last, in);
  x.of_operand(1, 1, in);
  x.of_operand(1, 0, out);
  x.of_output(last, out);
  if (x.count() == 3) x.of_operand(2, 0, out);
  x.made.work = Work::Product;
  x.made.operations = 2 * product_of(x.out()) * static_cast<double>(x.in(1)[1]);
  x.made.saves_operands = x.made.scatters = x.made.gathers = true;
}

void index_matmul(Indexer& x) {
  x.takes(2, 2);
  x.check(x.in(0).size() >= 2 && x.in(1).size() >= 2 && x.out().size() >= 2, "operands must be matrices");
  const size_t last = x.out().size() - 1;
  for (size_t dim = 0; dim + 1 < last; ++dim) x.of_output(dim, x.add("dim" + std::to_string(dim)));
  const int rows = x.add("dim" + std::to_string(last - 1)), in = x.add("in"), out = x.add("out");
  x.of_output(last - 1, rows);
  x.of_output(last, out);
  for (int operand = 0; operand < 2; ++operand) {
    const size_t dims = x.in(operand).size();
    x.check(dims <= x.out().size(), "an operand must not have more dimensions than the output");
    const size_t skipped = x.out().size() - dims;
    for (size_t dim = 0; dim + 2 < dims; ++dim)
      if (x.in(operand)[dim] != 1 || x.out()[dim + skipped] == 1)
        x.of_operand(operand, dim, x.made.output[dim + skipped]);
    x.of_operand(operand, dims - 2, operand == 0 ? rows : in);
    x.of_operand(operand, dims - 1, operand == 0 ? in : out);
  }
  x.made.work = Work::Product;
  x.made.operations = 2 * product_of(x.out()) * static_cast<double>(x.in(0).back());
  x.made.saves_operands = x.made.scatters = true;
}

void index_convolution(Indexer& x) {
  x.takes(2, 3);
  const size_t dims = x.in(0).size();
  x.check(dims >= 3, "the input must have rows, channels and positions");
  x.has_dims(1, dims);
  const int64_t groups = x.node().groups;
  const int rows = x.add("dim0");
  x.of_operand(0, 0, rows);
  x.of_output(0, rows);
  const bool is_depthwise = groups == x.in(0)[1] && groups == x.in(1)[0];
  const int out = x.add(is_depthwise ? "channels" : "out", groups == 1 || is_depthwise);
  x.of_operand(1, 0, out);
  x.of_output(1, out);
  if (is_depthwise) {
    x.of_operand(0, 1, out);
  } else if (groups == 1) {
    const int in = x.add("in");
    x.of_operand(0, 1, in);
    x.of_operand(1, 1, in);
  }
  x.check(x.in(1)[1] * groups == x.in(0)[1], "groups times the weight's channels must be the input's channels");
  if (x.count() == 3) x.of_operand(2, 0, out);
  x.made.work = Work::Product;
  x.made.operations = 2 * product_of(x.out()) * product_of(Shape(x.in(1).begin() + 1, x.in(1).end()));
  x.made.saves_operands = x.made.scatters = true;
}

void index_embedding(Indexer& x) {
  x.takes(2, 2);  // ids, weight
  x.has_dims(1, 2);
  x.check(x.out().size() == x.in(0).size() + 1, "the output must have one dimension more than the ids");
  for (size_t dim = 0; dim + 1 < x.out().size(); ++dim) {
    const int rows = x.add("dim" + std::to_string(dim));
    x.of_operand(0, dim, rows);
    x.of_output(dim, rows);
  }
  const int in = x.add("in"), out = x.add("out");
  x.of_operand(1, 0, in);
  x.of_operand(1, 1, out);
  x.of_output(x.out().size() - 1, out);
  x.made.saves_operands = x.made.scatters = true;
}

void index_norm(Indexer& x) {  // input, weight, bias: the last dimensions, as many as the weight has
  x.takes(1, 3);
  const size_t dims = x.out().size();
  x.has_dims(0, dims);
  size_t normalized = x.count() > 1 ? x.in(1).size() : x.node().dims.size();
  x.check(normalized >= 1 && normalized <= dims, "a norm must have a weight, or `dims` that it normalizes");
  for (size_t dim = 0; dim < dims; ++dim) {
    x.of_output(dim, x.add("dim" + std::to_string(dim), dim + normalized < dims));
    x.of_operand(0, dim, x.made.output[dim]);
  }
  for (int i = 1; i < x.count(); ++i) x.broadcast(i);
  x.made.saves_operands = true;
}

void index_channel_norm(Indexer& x, bool over_rows) {  // input, weight, bias, further tensors of a channel
  x.takes(1, 5);
  const size_t dims = x.out().size();
  x.has_dims(0, dims);
  x.check(dims >= 2, "the input must have rows and channels");
  for (size_t dim = 0; dim < dims; ++dim) {
    x.of_output(dim, x.add("dim" + std::to_string(dim), dim == 0 || (dim == 1 && over_rows)));
    x.of_operand(0, dim, x.made.output[dim]);
  }
  for (int i = 1; i < x.count(); ++i) {
    x.has_dims(i, 1);
    x.of_operand(i, 0, x.made.output[1]);
  }
  const int64_t statistic = std::max<int64_t>(4, dtype_bytes(x.node().output.dtype));  // at least fp32
  if (over_rows) x.made.statistics_bytes = 2 * x.out()[1] * statistic;
  x.made.saves_operands = true;
}

void index_batch_norm(Indexer& x) { index_channel_norm(x, true); }

void index_batch_norm_inference(Indexer& x) {  // input and tensors of a channel: the running statistics are constants
  x.takes(1, 5);
  x.check(x.out().size() >= 2, "the input must have rows and channels");
  x.index_output(true);
  x.broadcast(0);
  for (int i = 1; i < x.count(); ++i) {
    x.has_dims(i, 1);
    x.of_operand(i, 0, x.made.output[1]);
  }
  x.made.saves_operands = true;
}

void index_group_norm(Indexer& x) { index_channel_norm(x, false); }

void index_attention(Indexer& x) {  // queries, keys, values [rows, heads, positions, size], a mask
  x.takes(3, 4);
  for (int i = 0; i < 3; ++i) x.has_dims(i, 4);
  const int rows = x.add("dim0"), heads = x.add("heads");
  x.of_output(0, rows);
  x.of_output(1, heads);
  for (int i = 0; i < 3; ++i) {
    x.of_operand(i, 0, rows);
    x.of_operand(i, 1, heads, true);  // blocks of query heads belong to blocks of fewer key and value heads
  }
  x.check(x.in(1)[1] > 0 && x.in(0)[1] % x.in(1)[1] == 0, "query heads must be a multiple of key heads");
  if (x.count() == 4) x.broadcast(3);
  const double pairs = static_cast<double>(x.in(0)[2]) * static_cast<double>(x.in(1)[2]);
  x.made.operations = 2 * product_of({x.out()[0], x.in(0)[1], x.in(0)[3] + x.in(2)[3]}) * pairs;
  if (x.node().causal) x.made.operations /= 2;
  x.made.work = Work::Product;
  x.made.saves_operands = x.made.saves_output = true;
}

void index_softmax(Indexer& x) {
  x.takes(1, 1);
  x.dim();
  x.index_output();
  x.broadcast(0);
  x.made.saves_output = true;
}

void index_pooling(Indexer& x) {
  x.takes(1, 1);
  x.check(x.in(0).size() >= 3 && x.in(0).size() == x.out().size(), "the input must have rows, channels and positions");
  for (size_t dim = 0; dim < 2; ++dim) {
    x.of_output(dim, x.add("dim" + std::to_string(dim)));
    x.of_operand(0, dim, x.made.output[dim]);
  }
  x.made.saves_operands = true;
}

void index_permute(Indexer& x) {
  x.takes(1, 1);
  x.made.work = Work::View;
  const size_t dims = x.out().size();
  x.has_dims(0, dims);
  x.check(x.node().dims.size() == dims, "`dims` must name every dimension");
  for (size_t dim = 0; dim < dims; ++dim) x.of_output(dim, x.add("dim" + std::to_string(dim)));
  for (size_t dim = 0; dim < dims; ++dim) x.of_operand(0, static_cast<size_t>(x.node().dims[dim]), x.made.output[dim]);
}

void index_transpose(Indexer& x) {
  x.takes(1, 1);
  x.made.work = Work::View;
  x.has_dims(0, x.out().size());
  x.check(x.node().dims.size() == 2, "`dims` must name two dimensions");
  const auto first = static_cast<size_t>(x.node().dims[0]), second = static_cast<size_t>(x.node().dims[1]);
  for (size_t dim = 0; dim < x.out().size(); ++dim) {
    x.of_output(dim, x.add("dim" + std::to_string(dim)));
    x.of_operand(0, dim == first ? second : dim == second ? first : dim, x.made.output[dim]);
  }
}

/// Of each group of dimensions that hold the same elements, the first ones run together: blocks of [2, 3] are blocks of
/// [6], because later dimensions change fastest.
void index_reshape(Indexer& x) {
  x.takes(1, 1);
  x.made.work = Work::View;
  const Shape &in = x.in(0), &out = x.out();
  x.check(product_of(in) == product_of(out), "a view must keep the number of elements");
  if (product_of(in) == 0) return;
  for (size_t i = 0, j = 0; i < in.size() && j < out.size();) {
    if (in[i] == 1 && out[j] != 1) {
      ++i;
      continue;
    }
    if (out[j] == 1 && in[i] != 1) {
      ++j;
      continue;
    }
    x.of_output(j, x.add("dim" + std::to_string(j)), true);
    x.of_operand(0, i, x.made.output[j], true);
    int64_t left = in[i++], right = out[j++];
    while (left != right) left < right ? left *= in[i++] : right *= out[j++];
  }
}

void index_expand(Indexer& x) {
  x.takes(1, 1);
  x.made.work = Work::View;
  x.index_output(true);
  x.broadcast(0);
}

void index_part(Indexer& x) {  // slice: the named dimension becomes shorter; select: it goes
  x.takes(1, 1);
  x.made.work = Work::View;
  const auto cut = static_cast<size_t>(x.dim());
  const bool keeps = x.in(0).size() == x.out().size();
  x.check(keeps || x.in(0).size() == x.out().size() + 1, "a slice must keep all dimensions but one");
  for (size_t dim = 0, to = 0; dim < x.in(0).size(); ++dim) {
    if (dim == cut) {
      to += keeps ? 1 : 0;
      continue;
    }
    x.of_output(to, x.add("dim" + std::to_string(to)));
    x.of_operand(0, dim, x.made.output[to++]);
  }
}

void index_join(Indexer& x) {  // cat: the named dimension becomes longer; stack: it is new
  x.takes(1, 4096);
  const auto joined = static_cast<size_t>(x.dim());
  for (size_t dim = 0; dim < x.out().size(); ++dim)
    if (dim != joined) x.of_output(dim, x.add("dim" + std::to_string(dim)));
  for (int i = 0; i < x.count(); ++i) {
    const bool keeps = x.in(i).size() == x.out().size();
    x.check(keeps || x.in(i).size() + 1 == x.out().size(), "the operands must have the dimensions of the output");
    for (size_t dim = 0, from = 0; dim < x.out().size(); ++dim) {
      if (dim != joined) x.of_operand(i, from, x.made.output[dim]);
      from += dim != joined || keeps ? 1 : 0;
    }
  }
}

void index_reduction(Indexer& x) {
  x.takes(1, 1);
  const size_t dims = x.in(0).size();
  const bool all = x.node().dims.empty(), keeps = x.out().size() == dims;
  for (size_t dim = 0, to = 0; dim < dims; ++dim) {
    const int index = x.add("dim" + std::to_string(dim));
    x.of_operand(0, dim, index);
    if (all || x.names_dim(static_cast<int64_t>(dim))) {
      to += keeps ? 1 : 0;
      continue;
    }
    x.of_output(to++, index);
  }
}

void index_extremum(Indexer& x) {
  index_reduction(x);
  for (Index& index : x.made.indices) index.splits = !index.summed;  // parts of an extremum cannot be summed
  x.made.saves_operands = x.made.saves_output = true;
}

void index_loss(Indexer& x, bool classes, bool splits) {  // predictions, targets, class weights: one number
  x.takes(2, 3);
  x.check(x.out().empty(), "a loss must be one number");
  const bool by_class = classes && x.in(1).size() + 1 == x.in(0).size();
  const bool divides = splits && by_class && x.in(0).size() >= 2 && x.count() == 2 && !x.names_dim(1);
  for (size_t dim = 0; dim < x.in(0).size(); ++dim) {
    const bool is_class = classes && dim == 1;
    const int index = x.add(is_class && divides ? "classes" : "dim" + std::to_string(dim), !is_class || divides);
    x.of_operand(0, dim, index);
    if (is_class && divides) x.made.classes = index;
    if (by_class && is_class) continue;
    x.of_operand(1, by_class && dim > 1 ? dim - 1 : dim, index);
  }
  x.made.saves_operands = true;
}

void index_row_loss(Indexer& x, bool logits) {
  index_loss(x, true, logits);
  x.made.partial_bytes = 2 * std::max<int64_t>(4, dtype_bytes(x.node().output.dtype));  // at least fp32
}
void index_cross_entropy(Indexer& x) { index_row_loss(x, true); }
void index_class_loss(Indexer& x) { index_row_loss(x, false); }
void index_pointwise_loss(Indexer& x) { index_loss(x, false, false); }

using IndexFunction = void (*)(Indexer&);

struct OperatorRow {
  IndexFunction index;
  std::vector<const char*> names;
};

const std::vector<OperatorRow>& operator_rows() {
  static const std::vector<OperatorRow> rows{
      {index_source, {"input", "constant"}},
      {index_linear, {"linear"}},
      {index_matmul, {"matmul", "bmm"}},
      {index_convolution, {"conv1d", "conv2d", "conv3d"}},
      {index_embedding, {"embedding"}},
      {index_norm, {"layer_norm", "rms_norm"}},
      {index_batch_norm, {"batch_norm"}},
      {index_batch_norm_inference, {"batch_norm_inference"}},
      {index_group_norm, {"group_norm"}},
      {index_attention, {"scaled_dot_product_attention"}},
      {index_softmax, {"softmax", "log_softmax"}},
      {index_pooling,
       {"max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
        "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d"}},
      {index_permute, {"permute"}},
      {index_transpose, {"transpose"}},
      {index_reshape, {"view", "reshape", "flatten", "squeeze", "unsqueeze"}},
      {index_expand, {"expand"}},
      {index_part, {"slice", "select"}},
      {index_join, {"cat", "stack"}},
      {index_reduction, {"sum", "mean"}},
      {index_extremum, {"amax", "amin"}},
      {index_cross_entropy, {"cross_entropy"}},
      {index_class_loss, {"nll_loss"}},
      {index_pointwise_loss, {"mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"}},
      {index_elementwise,
       {"add", "sub", "neg", "to",    "clone", "contiguous", "detach", "fill",        "eq",          "ne",        "lt",
        "le",  "gt",  "ge",  "floor", "ceil",  "round",      "sign",   "logical_not", "logical_and", "logical_or"}},
      {index_activation,
       {"mul",      "div",     "pow", "abs",   "gelu",   "silu",  "softplus",  "elu",         "leaky_relu",
        "hardtanh", "log",     "sin", "cos",   "square", "clamp", "where",     "masked_fill", "maximum",
        "minimum",  "dropout", "erf", "log1p", "expm1",  "mish",  "hardswish", "hardsigmoid"}},
      {index_from_output, {"relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal"}},
  };
  return rows;
}

}  // namespace

std::vector<std::string> operator_names() {
  std::vector<std::string> names;
  for (const OperatorRow& row : operator_rows()) names.insert(names.end(), row.names.begin(), row.names.end());
  return names;
}

IndexedOperator index_operator(const Graph& graph, int node) {
  static const std::map<std::string, IndexFunction> functions = [] {
    std::map<std::string, IndexFunction> all;
    for (const OperatorRow& row : operator_rows())
      for (const char* name : row.names) all.emplace(name, row.index);
    return all;
  }();
  Indexer indexer(graph, node);
  const auto found = functions.find(graph.nodes[node].op);
  if (found == functions.end()) {
    indexer.made.is_known = false;
    indexer.made.saves_operands = indexer.made.saves_output = true;
  } else {
    found->second(indexer);
  }
  return std::move(indexer.made);
}

}  // namespace colossal::plan
