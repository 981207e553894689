#include "colossal/plan/graph.h"

#include <algorithm>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"

namespace colossal::plan {
namespace {

using GraphJson = nlohmann::ordered_json;

constexpr const char* kGraphFormat = "colossal-graph";
constexpr int64_t kMaxElements = int64_t{1} << 56;
constexpr size_t kMaxDims = 16;

void check_type(const TensorType& type, const std::string& name) {
  require(dtype_bytes(type.dtype) > 0, "graph", "the dtype of ", printable(name), " must be a dtype of PyTorch: got `",
          printable(type.dtype), "`");
  require(type.shape.size() <= kMaxDims, "graph", "a tensor must have at most ", kMaxDims,
          " dimensions: ", printable(name), " has ", type.shape.size());
  int64_t elements = 1;
  for (const int64_t size : type.shape) {
    require(size >= 0, "graph", "sizes must not be negative: ", printable(name), " has ", print_shape(type.shape));
    require(size == 0 || elements <= kMaxElements / size, "graph",
            "a tensor must have at most 2^56 elements: ", printable(name), " has ", print_shape(type.shape));
    elements *= std::max<int64_t>(size, 1);
  }
}

void check_dims(const Graph& graph, int index) {
  const Node& node = graph.nodes[index];
  size_t dims = node.output.shape.size();
  for (const Source source : graph.operands[index]) dims = std::max(dims, graph.type_of(source).shape.size());
  for (const int64_t dim : node.dims) {
    require(dim >= 0 && dim < static_cast<int64_t>(dims), "graph", "`dims` must be below the number of dimensions, ",
            dims, ": node ", printable(node.name), " has ", print_shape(node.dims));
  }
  require(node.groups >= 1, "graph", "`groups` must be at least 1: node ", printable(node.name), " has ", node.groups);
}

template <class Item>
Item read_item(const GraphJson& object, const std::string& file, const char* kind, size_t index) {
  Item item;
  try {
    const std::vector<std::string> given = read_json(object, item, "graph");
    for (const char* member : {"name", "shape"}) {
      require(std::find(given.begin(), given.end(), member) != given.end(), "graph", "`", member, "` is missing");
    }
  } catch (const Error& error) {
    const std::string label = item.name.empty() ? "" : " (" + printable(item.name) + ")";
    throw Error("graph", concat(file, ": ", kind, " ", index, label, ": ", error.message()));
  }
  return item;
}

template <class Item>
std::vector<Item> read_items(const GraphJson& object, const std::string& file, const char* member, const char* kind) {
  const auto found = object.find(member);
  require(found != object.end() && found->is_array(), "graph", file, ": `", member, "` must be a list of objects");
  std::vector<Item> items;
  for (const GraphJson& item : *found) items.push_back(read_item<Item>(item, file, kind, items.size()));
  return items;
}

template <class Items>
std::string lines_of(const Items& items) {
  std::string lines;
  for (const auto& item : items) lines += (lines.empty() ? "\n  " : ",\n  ") + json_line(to_json_object(item));
  return "[" + lines + (lines.empty() ? "]" : "\n ]");
}

/// Returns true for operators that pass no gradient on. A `fill` with two operands has the gradient of the second.
bool stops_gradient(const Node& node) { return node.op == "detach" || (node.op == "fill" && node.inputs.size() == 1); }

/// Nodes that no gradient of the last node reaches have none: all that they make is detached.
void leave_out_unreached(Graph& graph) {
  std::vector<bool> reached(graph.nodes.size(), false);
  reached.back() = true;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    graph.needs_gradient[i] = graph.needs_gradient[i] && reached[i];
    if (!graph.needs_gradient[i]) continue;
    for (const Source source : graph.operands[i])
      if (!source.is_parameter) reached[source.index] = true;
  }
}

}  // namespace

int64_t TensorType::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

int64_t TensorType::bytes() const { return elements() * dtype_bytes(dtype); }

bool TensorType::is_floating() const { return dtype.find("float") != std::string::npos; }

int64_t dtype_bytes(std::string_view dtype) {
  static const std::map<std::string_view, int64_t> sizes{
      {"float64", 8}, {"float32", 4}, {"bfloat16", 2}, {"float16", 2}, {"float8_e4m3fn", 1}, {"float8_e5m2", 1},
      {"int64", 8},   {"int32", 4},   {"int16", 2},    {"int8", 1},    {"uint8", 1},         {"bool", 1},
  };
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

void Parameter::fields(Fields& f) {
  f.text("name", name, "name of the parameter in the module");
  f.integers("shape", type.shape, "", "sizes");
  f.text("dtype", type.dtype, "PyTorch's name of the dtype");
  f.optional(trains).flag("trains", trains, "the parameter has a gradient");
}

void Node::fields(Fields& f) {
  f.text("name", name, "name of the node, unique in the graph");
  f.text("op", op, "operator");
  f.texts("inputs", inputs, "nodes and parameters that the operator reads");
  f.integers("shape", output.shape, "", "sizes of the output");
  f.text("dtype", output.dtype, "PyTorch's name of the output's dtype");
  f.optional(dims.empty()).integers("dims", dims, "", "dimensions that the operator names");
  f.optional(groups == 1).integer("groups", groups, "", "groups of a convolution or group norm", 1);
  f.optional(!causal).flag("causal", causal, "attention without the pairs above the diagonal");
  f.optional(!whole).flag("whole", whole, "every rank has the whole input");
}

void Graph::settle() {
  require(!nodes.empty(), "graph", "a graph must have a node: got none");
  std::map<std::string, Source> known;
  std::vector<std::string> names;
  const auto add = [&](const std::string& name, Source source) {
    require(!name.empty(), "graph",
            "nodes and parameters must have names: ", source.is_parameter ? "parameter " : "node ", source.index,
            " has none");
    require(known.emplace(name, source).second, "graph",
            "names of nodes and parameters must be unique: ", printable(name), " is given twice");
    names.push_back(name);
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    add(parameters[i].name, {true, static_cast<int>(i)});
    check_type(parameters[i].type, parameters[i].name);
  }
  operands.assign(nodes.size(), {});
  consumers.assign(nodes.size(), {});
  needs_gradient.assign(nodes.size(), false);
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    const Node& node = nodes[i];
    check_type(node.output, node.name);
    bool reads_gradient = false;
    for (const std::string& input : node.inputs) {
      const auto found = known.find(input);
      require(found != known.end(), "graph", "inputs must be parameters or earlier nodes: node ", printable(node.name),
              " reads ", printable(input), found == known.end() ? did_you_mean(input, names) : "");
      operands[i].push_back(found->second);
      reads_gradient = reads_gradient || has_gradient(found->second);
      if (found->second.is_parameter) continue;
      std::vector<int>& readers = consumers[found->second.index];
      if (readers.empty() || readers.back() != i) readers.push_back(i);
    }
    needs_gradient[i] = reads_gradient && node.output.is_floating() && !stops_gradient(node);
    add(node.name, {false, i});
    check_dims(*this, i);
  }
  leave_out_unreached(*this);
}

int Graph::index_of(const std::string& name) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].name == name) return static_cast<int>(i);
    names.push_back(nodes[i].name);
  }
  throw Error("graph", concat("no node is named ", printable(name), did_you_mean(name, names)));
}

Graph parse_graph(std::string_view text, const std::string& name) {
  const GraphJson object = parse_ordered_json(text, name, "graph", {.distinct_names = true});
  require(object.is_object(), "graph", name, ": the file must be a JSON object");
  const auto format = object.find("format");
  require(format != object.end() && *format == kGraphFormat, "graph", name, ": `format` must be \"", kGraphFormat,
          "\": got ", format == object.end() ? "none" : printable(json_line(*format)));
  const auto version = object.find("version");
  require(version != object.end() && *version == 1, "graph", name, ": `version` must be 1: got ",
          version == object.end() ? "none" : printable(json_line(*version)), "; a newer program reads it");
  const std::vector<std::string> members{"format", "version", "parameters", "nodes"};
  for (const auto& [member, value] : object.items()) {
    require(std::find(members.begin(), members.end(), member) != members.end(), "graph", name, ": unknown member `",
            printable(member), "`", did_you_mean(member, members));
  }
  Graph graph;
  graph.parameters = read_items<Parameter>(object, name, "parameters", "parameter");
  graph.nodes = read_items<Node>(object, name, "nodes", "node");
  try {
    graph.settle();
  } catch (const Error& error) {
    throw Error("graph", name + ": " + error.message());
  }
  return graph;
}

Graph read_graph(const std::string& path) { return parse_graph(read_file(path, JsonLimits{}.bytes), path); }

std::string print_graph(const Graph& graph) {
  return concat("{\"format\": \"", kGraphFormat, "\", \"version\": 1,\n \"parameters\": ", lines_of(graph.parameters),
                ",\n \"nodes\": ", lines_of(graph.nodes), "}\n");
}

void write_graph(const Graph& graph, const std::string& path) { write_file(path, print_graph(graph)); }

std::string print_shape(const std::vector<int64_t>& shape) { return "[" + join(shape) + "]"; }

}  // namespace colossal::plan
