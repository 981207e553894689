#include "colossal/plan/plan_file.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"

namespace colossal::plan {
namespace {

using PlanJson = nlohmann::ordered_json;

constexpr const char* kPlanFormat = "colossal-plan";

struct PlanRow {
  std::string name, op, strategy;
  std::vector<int64_t> shape;

  void fields(Fields& f) {
    f.text("name", name, "name of the node");
    f.text("op", op, "operator of the node");
    f.integers("shape", shape, "", "sizes of the output");
    f.text("strategy", strategy, "axes and the indices that they divide");
  }
};

Mesh read_mesh(const PlanJson& object, const std::string& name) {
  const auto found = object.find("mesh");
  require(found != object.end() && found->is_object() && !found->empty(), "plan", name,
          ": `mesh` must be an object of axes and sizes");
  std::string text;
  for (const auto& [axis, size] : found->items()) text += (text.empty() ? "" : ",") + axis + "=" + json_line(size);
  try {
    return parse_mesh(text);
  } catch (const Error& error) {
    throw Error("plan", name + ": " + error.message());
  }
}

void check_head(const PlanJson& object, const std::string& name) {
  require(object.is_object(), "plan", name, ": the file must be a JSON object");
  const auto format = object.find("format");
  require(format != object.end() && *format == kPlanFormat, "plan", name, ": `format` must be \"", kPlanFormat,
          "\": got ", format == object.end() ? "none" : printable(json_line(*format)));
  const auto version = object.find("version");
  require(version != object.end() && *version == 1, "plan", name, ": `version` must be 1: got ",
          version == object.end() ? "none" : printable(json_line(*version)), "; a newer program reads it");
  const std::vector<std::string> members{"format", "version", "mesh", "nodes"};
  for (const auto& [member, value] : object.items()) {
    require(std::find(members.begin(), members.end(), member) != members.end(), "plan", name, ": unknown member `",
            printable(member), "`", did_you_mean(member, members));
  }
}

std::string described(const std::string& name, const std::string& op, const std::vector<int64_t>& shape) {
  return printable(name) + " (" + printable(op) + " to " + print_shape(shape) + ")";
}

}  // namespace

std::string print_plan(const Plan& plan, const Graph& graph) {
  std::string mesh, lines;
  for (const Axis& axis : plan.mesh.axes) mesh += concat(mesh.empty() ? "" : ", ", '"', axis.name, "\": ", axis.size);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const PlanRow row{
        .name = node.name, .op = node.op, .strategy = plan.strategies[i].name, .shape = node.output.shape};
    lines += (lines.empty() ? "\n  " : ",\n  ") + json_line(to_json_object(row));
  }
  return concat("{\"format\": \"", kPlanFormat, "\", \"version\": 1, \"mesh\": {", mesh, "},\n \"nodes\": [", lines,
                "\n ]}\n");
}

void write_plan(const Plan& plan, const Graph& graph, const std::string& path) {
  write_file(path, print_plan(plan, graph));
}

PlanFile parse_plan(std::string_view text, const std::string& name, const Graph& graph) {
  const PlanJson object = parse_ordered_json(text, name, "plan", {.distinct_names = true});
  check_head(object, name);
  PlanFile file{.mesh = read_mesh(object, name)};
  const auto found = object.find("nodes");
  require(found != object.end() && found->is_array(), "plan", name, ": `nodes` must be a list of objects");
  for (const PlanJson& item : *found) {
    const size_t index = file.strategies.size();
    PlanRow row;
    try {
      read_json(item, row, "plan");
    } catch (const Error& error) {
      throw Error("plan", concat(name, ": node ", index, ": ", error.message()));
    }
    const std::string given = described(row.name, row.op, row.shape);
    require(index < graph.nodes.size(), "plan", name, ": the plan is of another graph: it has ", given,
            " after the last node of the graph");
    const Node& node = graph.nodes[index];
    require(row.name == node.name && row.op == node.op && row.shape == node.output.shape, "plan", name,
            ": the plan is of another graph: node ", index, " is ", given, ", that of the graph is ",
            described(node.name, node.op, node.output.shape));
    file.strategies.push_back(row.strategy);
  }
  require(file.strategies.size() == graph.nodes.size(), "plan", name, ": the plan is of another graph: it lacks node ",
          printable(graph.nodes[std::min(file.strategies.size(), graph.nodes.size() - 1)].name));
  return file;
}

PlanFile read_plan(const std::string& path, const Graph& graph) {
  return parse_plan(read_file(path, JsonLimits{}.bytes), path, graph);
}

}  // namespace colossal::plan
