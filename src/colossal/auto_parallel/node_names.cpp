#include "colossal/auto_parallel/node_names.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

namespace colossal::automatic {
namespace {

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

/// Returns the path up to its last number that is not its end: "layers.0" of "layers.0.fc1" and of "layers.0.wq".
std::string block_of(const std::string& module) {
  size_t end = 0;
  size_t begin = 0;
  for (size_t dot = module.find('.'); dot != std::string::npos; begin = dot + 1, dot = module.find('.', begin))
    if (dot > begin && module.find_first_not_of("0123456789", begin) >= dot) end = dot;
  return module.substr(0, end);
}

/// Returns true for the parameters of a layer, which has one operator. Modules of several name theirs otherwise.
bool is_of_layer(const std::string& parameter) {
  const std::string last = parameter.substr(parameter.rfind('.') + 1);
  return last == "weight" || last == "bias";
}

bool is_view(const std::string& op) {
  static const std::set<std::string> views{"transpose", "permute", "reshape",   "flatten", "slice",
                                           "select",    "squeeze", "unsqueeze", "expand",  "detach"};
  return views.count(op) > 0;
}

std::string joined(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

class Namer {
 public:
  Namer(plan::Graph& graph, const std::vector<std::vector<plan::Source>>& operands)
      : graph_(graph), operands_(operands), blocks_(graph.nodes.size()) {
    for (const plan::Parameter& parameter : graph.parameters) taken_.insert(parameter.name);
    for (const plan::Node& node : graph.nodes)
      if (!node.name.empty()) taken_.insert(node.name);
  }

  void name(size_t index) {
    plan::Node& node = graph_.nodes[index];
    if (!node.name.empty()) return;
    const std::string op = node.op.substr(node.op.find(':') == std::string::npos ? 0 : node.op.rfind(':') + 1);
    for (const plan::Source source : operands_[index]) {
      if (!source.is_parameter) continue;
      const std::string parameter = graph_.parameters[source.index].name, module = module_of(parameter);
      const bool of_layer = is_of_layer(parameter);
      blocks_[index] = last_ = block_of(of_layer ? module : parameter);
      const bool first = of_layer && !module.empty() && !is_view(node.op) && taken_.count(module) == 0;
      node.name = unique(first ? module : joined(module, op));
      return;
    }
    int latest = -1;
    for (const plan::Source source : operands_[index])
      if (blocks_[source.index]) latest = std::max(latest, source.index);
    if (latest >= 0) blocks_[index] = blocks_[latest];
    node.name = unique(node.op == "constant" ? op : joined(blocks_[index].value_or(last_), op));
  }

 private:
  std::string unique(const std::string& wanted) {
    std::string name = wanted;
    for (int number = 2; !taken_.insert(name).second; ++number) name = wanted + "_" + std::to_string(number);
    return name;
  }

  plan::Graph& graph_;
  const std::vector<std::vector<plan::Source>>& operands_;
  std::vector<std::optional<std::string>> blocks_;  ///< of each node; none = it depends on no parameter
  std::string last_;                                ///< block of the last parameter read
  std::set<std::string> taken_;
};

}  // namespace

void name_nodes(plan::Graph& graph, const std::vector<std::vector<plan::Source>>& operands) {
  Namer namer(graph, operands);
  for (size_t i = 0; i < graph.nodes.size(); ++i) namer.name(i);
}

}  // namespace colossal::automatic
