#include <CLI/CLI.hpp>
#include <cstdio>

#include "colossal/base/config.h"
#include "colossal/cli/commands.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/run/program.h"

namespace colossal::cli {

int list_models(const Arguments& arguments, const run::Program* program) {
  CLI::App app("Lists the architectures: task, presets (model.name) and further keys of [model] of each.",
               "colossal models");
  parse(app, arguments);
  const models::Registry registry = program ? program->models : models::built_in();
  for (const auto& row : registry.architectures()) {
    std::string names;
    for (const models::Preset& preset : row->presets) names += " " + preset.name;
    if (names.empty()) {
      std::printf("%s: no presets\n\n", row->name.c_str());
      continue;
    }
    const models::ModelShape first = registry.resolve({.name = row->presets.at(0).name});
    std::printf("%s, which %s:%s\n", row->name.c_str(), first.task().purpose(), names.c_str());
    const std::vector<KeyHelp> keys = models::describe_own(first.own);
    if (!keys.empty())
      std::printf("keys, with the values of %s:\n%s", row->presets[0].name.c_str(), format_help(keys).c_str());
    std::printf("\n");
  }
  return 0;
}

}  // namespace colossal::cli
