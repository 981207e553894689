#include "colossal/plan/specs.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/base/suggest.h"

namespace colossal::plan {
namespace {

constexpr int64_t kMaxAxisSize = 65536;

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(' ') - begin + 1));
}

std::vector<std::string> split_at(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(trimmed(text.substr(begin, end == std::string_view::npos ? end : end - begin)));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::vector<std::string> names_of(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const Axis& axis : mesh.axes) names.push_back(axis.name);
  return names;
}

uint8_t parse_entry(const std::string& entry, std::string_view text, const Mesh& mesh) {
  if (entry == "R") return 0;
  uint8_t set = 0;
  for (const std::string& name : split_at(entry, '+')) {
    const int axis = mesh.find(name);
    require(axis >= 0, "plan", "an entry of a spec must be R or axes of the mesh ", print_mesh(mesh), ": got `",
            printable(entry), "` in ", printable(std::string(text)),
            axis < 0 ? did_you_mean(name, names_of(mesh)) : "");
    require((set >> axis) == 0, "plan", "the axes of an entry must be in the order of the mesh ", print_mesh(mesh),
            ": got `", printable(entry), "`");
    set = static_cast<uint8_t>(set | (1u << axis));
  }
  return set;
}

void extend_specs(const std::vector<int64_t>& shape, const Mesh& mesh, size_t axis, Spec& spec,
                  std::vector<Spec>& specs) {
  if (axis == mesh.axes.size()) {
    if (is_legal(spec, shape, mesh)) specs.push_back(spec);
    return;
  }
  extend_specs(shape, mesh, axis + 1, spec, specs);
  if (mesh.axes[axis].size == 1) return;  // would give the same blocks under another name
  for (uint8_t& entry : spec) {
    entry = static_cast<uint8_t>(entry | (1u << axis));
    extend_specs(shape, mesh, axis + 1, spec, specs);
    entry = static_cast<uint8_t>(entry & ~(1u << axis));
  }
}

}  // namespace

int64_t Mesh::ranks() const {
  int64_t ranks = 1;
  for (const Axis& axis : axes) ranks *= axis.size;
  return ranks;
}

int Mesh::find(std::string_view name) const {
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i].name == name) return static_cast<int>(i);
  return -1;
}

Mesh parse_mesh(std::string_view text) {
  Mesh mesh{{{"data", 1}, {"tensor", 1}}};
  std::vector<std::string> given;
  for (const std::string& part : split_at(text, ',')) {
    const size_t equals = std::min(part.find('='), part.size());
    const std::string name = trimmed(part.substr(0, equals));
    const int axis = mesh.find(name);
    require(axis >= 0, "plan", "an axis of the mesh must be data or tensor: got `", printable(part), "`",
            did_you_mean(name, names_of(mesh)), "; write data=2,tensor=4");
    require(std::find(given.begin(), given.end(), name) == given.end(), "plan", "an axis must be given once: got ",
            name, " twice");
    const auto size = parse_id(trimmed(part.substr(std::min(equals + 1, part.size()))));
    require(size && *size >= 1 && *size <= kMaxAxisSize, "plan", "the size of an axis must be 1 to ", kMaxAxisSize,
            ": got `", printable(part), "`");
    mesh.axes[axis].size = *size;
    given.push_back(name);
  }
  return mesh;
}

std::string print_mesh(const Mesh& mesh) {
  return join(mesh.axes, ",", [](const Axis& axis) { return concat(axis.name, "=", axis.size); });
}

std::string print_spec(const Spec& spec, const Mesh& mesh) {
  std::string text;
  for (size_t dim = 0; dim < spec.size(); ++dim) {
    std::string entry;
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis)
      if (spec[dim] >> axis & 1) entry += (entry.empty() ? "" : "+") + mesh.axes[axis].name;
    text += (dim == 0 ? "" : ", ") + (entry.empty() ? "R" : entry);
  }
  return "[" + text + "]";
}

Spec parse_spec(std::string_view text, const Mesh& mesh) {
  const std::string all = trimmed(text);
  require(all.size() >= 2 && all.front() == '[' && all.back() == ']', "plan",
          "a spec must be a list such as [data, R]: got `", printable(all), "`");
  const std::string list = trimmed(std::string_view(all).substr(1, all.size() - 2));
  Spec spec;
  if (list.empty()) return spec;
  uint8_t used = 0;
  for (const std::string& entry : split_at(list, ',')) {
    const uint8_t set = parse_entry(entry, all, mesh);
    require((used & set) == 0, "plan", "an axis must divide at most one dimension: got ", printable(all));
    used = static_cast<uint8_t>(used | set);
    spec.push_back(set);
  }
  return spec;
}

int64_t blocks_of(uint8_t set, const Mesh& mesh) {
  int64_t blocks = 1;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis)
    if (set >> axis & 1) blocks *= mesh.axes[axis].size;
  return blocks;
}

int64_t blocks_of(const Spec& spec, const Mesh& mesh) {
  int64_t blocks = 1;
  for (const uint8_t set : spec) blocks *= blocks_of(set, mesh);
  return blocks;
}

bool is_legal(const Spec& spec, const std::vector<int64_t>& shape, const Mesh& mesh) {
  if (spec.size() != shape.size()) return false;
  uint8_t used = 0;
  for (size_t dim = 0; dim < spec.size(); ++dim) {
    if ((used & spec[dim]) != 0 || spec[dim] >> mesh.axes.size() != 0) return false;
    used = static_cast<uint8_t>(used | spec[dim]);
    if (shape[dim] % blocks_of(spec[dim], mesh) != 0) return false;
  }
  return true;
}

std::vector<Spec> legal_specs(const std::vector<int64_t>& shape, const Mesh& mesh) {
  std::vector<Spec> specs;
  Spec spec(shape.size(), 0);
  extend_specs(shape, mesh, 0, spec, specs);
  return specs;
}

}  // namespace colossal::plan
