// Configs from a file and from values of Python.
#include "colossal/run/config.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "bind.h"
#include "colossal/run/objectives/data_keys.h"
#include "colossal/run/own_tables.h"

namespace colossal::binding {
namespace {

/// A value of Python. pybind11 takes the first alternative that needs no conversion.
using Value = std::variant<bool, int64_t, double, std::string, ConfigValue::List>;

struct ReadConfig {
  run::GivenConfig given;
  std::set<std::string> keys;  // the keys that the file or the values set
};

ReadConfig read_python_config(const std::string& path, const std::map<std::string, Value>& values) {
  const ConfigDocument file = path.empty() ? ConfigDocument() : ConfigDocument::load(path);
  ConfigDocument on_top;
  for (const auto& [key, value] : values)
    std::visit([&, &name = key](const auto& typed) { on_top.set(name, {typed, "", std::nullopt}); }, value);
  ReadConfig read{run::read_given_config(file, on_top), {}};
  run::refuse_other_keys(read.given.config, {}, run::built_in_data_keys());
  for (const ConfigDocument* document : {&file, static_cast<const ConfigDocument*>(&on_top)})
    for (const auto& entry : document->values()) read.keys.insert(entry.first);
  return read;
}

}  // namespace

void bind_config(py::module_& module) {
  py::class_<run::Config>(module, "Config", "A config that was read and not yet validated.")
      .def_property_readonly("device", [](const run::Config& c) { return c.run.device; })
      .def_property_readonly("zero", [](const run::Config& c) { return c.parallel.zero; })
      .def_property_readonly("has_tiers", [](const run::Config& c) { return c.memory.has_tiers(); })
      .def_property_readonly("accumulate", [](const run::Config& c) { return c.training.accumulate; })
      .def_property_readonly("schedule", [](const run::Config& c) { return c.optimizer.schedule.name; })
      .def_property_readonly("warmup_steps", [](const run::Config& c) { return c.optimizer.warmup_steps; })
      .def_property_readonly("learning_rate_scaling",
                             [](const run::Config& c) { return c.optimizer.learning_rate_scaling; });
  module.def(
      "read_config",
      [](const std::string& path, const std::map<std::string, Value>& values) {
        ReadConfig read = read_python_config(path, values);
        return std::tuple(std::move(read.given.config), std::move(read.keys), std::move(read.given.notices));
      },
      py::arg("path"), py::arg("values"),
      "Reads a TOML file (\"\" = none) and values by dotted key, which override it. Returns the config, the keys that "
      "were given and notices for the user.");
}

}  // namespace colossal::binding
